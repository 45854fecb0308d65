"""Ranks beside the one that is run: what a pipeline's stages tell each other, and what each of them holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import forerun
from forerun.cli.exec_ranks import ranks_of
from forerun.errors import InvalidSettings, NotSupported
from forerun.virtual.cuda.peers import FOLDER_VARIABLE, Peers, leave_result

SLOW = pytest.mark.slow
SCRIPT = Path(__file__).parents[4] / "tests" / "scripts" / "pipeline_stages.py"
FLOAT_BYTES = 4


def test_messages_arrive_in_order(tmp_path):
    first, second = Peers(tmp_path, 0, None), Peers(tmp_path, 1, None)
    first.send(1, torch.tensor([[3, 4]]))
    first.send(1, None)
    second.send(0, torch.tensor([5]))
    assert [second.receive(0), second.receive(0), first.receive(1)] == [[3, 4], None, [5]]


def test_a_rank_that_ends_too_soon_is_named(tmp_path):
    def start(rank):
        with open(tmp_path / f"rank-{rank}.txt", "w") as words:
            return subprocess.Popen([sys.executable, "-c", "import sys; sys.exit('no data')"], stderr=words)

    peers = Peers(tmp_path, 0, start)
    with pytest.raises(NotSupported, match=r"from rank 1.*input_args and output_args.*no data"):
        peers.receive(1)
    peers.close()


def test_without_other_ranks_a_stage_is_told_what_to_give():
    with forerun.virtual_cuda("t4"):
        torch.distributed.init_process_group("nccl", rank=1, world_size=2)
        floating = torch.zeros(4, device="cuda")
        torch.distributed.recv(floating, src=0)
        with pytest.raises(NotSupported, match="input_args"):
            torch.distributed.recv(torch.zeros(4, device="cuda", dtype=torch.int64), src=0)


def test_ranks_have_names():
    assert ranks_of("first,middle,last", 8) == [0, 4, 7]
    assert ranks_of("3", 4) == [3]
    assert ranks_of("0,last", 1) == [0]
    for wrong in ("8", "-1", "second", ""):
        with pytest.raises(InvalidSettings, match="--rank"):
            ranks_of(wrong, 8)


@pytest.mark.medium
@pytest.mark.parametrize(
    "schedule", [pytest.param("gpipe", marks=SLOW), pytest.param("1f1b", marks=SLOW), "interleaved"]
)
def test_each_stage_of_a_pipeline_has_its_own_memory(schedule):
    exec_ranks = [sys.executable, "-m", "forerun", "exec", "--gpu", "h100-80gb", "--json", "--rank", "first,last"]
    launch = ["torchrun", "--nproc_per_node", "2", str(SCRIPT), schedule]
    done = subprocess.run([*exec_ranks, "--", *launch], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    words = [line.split() for line in done.stderr.splitlines() if line.startswith("PARAMETERS")]
    parameters = {int(each[3]): int(each[1]) for each in words}
    assert parameters.keys() == {0, 1}
    assert [row["rank"] for row in document["ranks"]] == [0, 1]
    assert document["rank"] == max(document["ranks"], key=lambda row: row["device_bytes"])["rank"]
    assert document["parameters"]["total"] == parameters[document["rank"]]
    for row in document["ranks"]:  # parameters, gradients and two moments
        assert row["peak_allocated_bytes"] > 4 * FLOAT_BYTES * parameters[row["rank"]]
    exchanged = [row for row in document["collectives"] if row["name"] in ("send", "recv_")]
    activations = 2 * 128 * 256 * FLOAT_BYTES  # micro-batches of two rows
    assert {row["bytes"] for row in exchanged} == {activations}
    stages = {"interleaved": 3}.get(schedule, 1)  # borders between this rank and the other
    assert sum(row["count"] for row in exchanged) == 2 * 8 * stages
    assert "time that a pipeline stage waits for others" in document["not_modelled"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("gpipe", [[0], [1, 2], [3]]), pytest.param("1f1b", [[0], [1], [2], [3]], marks=SLOW)],
)
def test_stages_that_do_the_same_are_one_kind(schedule, stages):
    """All of GPipe's stages hold all micro-batches; of 1F1B's each holds one less than the one before it."""
    execute = [sys.executable, "-m", "forerun", "exec", "--gpu", "h100-80gb", "--json"]
    launch = ["torchrun", "--nproc_per_node", "4", str(SCRIPT), schedule]
    done = subprocess.run([*execute, "--", *launch], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    kinds = document["kinds"]
    assert [kind["stages"] for kind in kinds] == stages
    assert ",".join(kind["ranks"] for kind in kinds) == {3: "0,1-2,3", 4: "0,1,2,3"}[len(stages)]
    assert sum(kind["count"] for kind in kinds) == document["world_size"] == 4
    largest = max(kinds, key=lambda kind: kind["device_bytes"])
    assert document["rank"] == largest["rank"]
    assert document["memory"]["peak_allocated_bytes"] == largest["peak_allocated_bytes"]
    tokens = document["step"]["tokens_per_second"] * document["step"]["seconds"]["expected"]
    assert tokens == pytest.approx(16 * 128)  # the first stage alone is given the ids
    assert all(kind["compute_seconds"] > kind["communication_seconds"] > 0 for kind in kinds)


def test_a_rank_that_leaves_no_result_is_named(tmp_path):
    def start(rank):
        with open(tmp_path / f"rank-{rank}.txt", "w") as words:
            return subprocess.Popen([sys.executable, "-c", "import sys; sys.exit('no card')"], stderr=words)

    peers = Peers(tmp_path, 0, start)
    with pytest.raises(NotSupported, match=r"rank 4 .*--rank 4.*no card"):
        peers.finish([4])
    peers.close()


def test_results_are_left_for_the_rank_that_started_this_one(tmp_path, monkeypatch):
    leave_result(4, "{}")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    leave_result(4, '{"cards": []}')
    peers = Peers(tmp_path, 0, lambda rank: subprocess.Popen([sys.executable, "-c", ""]))
    assert peers.finish([4]) == [4]
    assert peers.result(4).read_text() == '{"cards": []}'
    peers.close()
