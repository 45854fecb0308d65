"""Unmodified scripts on a virtual GPU: what they believe, what is forecast, and that nothing they write stays."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.exec_runs import run
from torch import nn

import forerun
from forerun.errors import InvalidSettings, MissingPeak
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.report.program import program_tables
from forerun.trace import OP
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"
FLOAT_BYTES = 4


def test_a_plain_loop_believes_it_runs_on_cuda(capsys):
    (forecast,), result = run("gpt_loop.py")
    assert result.error == ""
    assert (result.exit_code, forecast.fits, forecast.script.steps_seen) == (0, True, 3)
    assert "cuda:0 True" in capsys.readouterr().out
    parameters = 1000 * 128 * 2 + 64 * 128 + 2 * (4 * 128 + 4 * 128**2 + 4 * 128 + 8 * 128**2 + 5 * 128)
    assert forecast.parameters.total == forecast.parameters.trainable == parameters
    assert forecast.memory.breakdown.parameter_bytes == pytest.approx(FLOAT_BYTES * parameters, rel=0.01)
    assert forecast.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * FLOAT_BYTES * parameters, rel=0.02)
    assert forecast.step.samples_per_second == pytest.approx(8 / forecast.step.seconds.expected)
    assert forecast.step.tokens_per_second == pytest.approx(8 * 64 / forecast.step.seconds.expected)
    assert sum(forecast.memory.breakdown.model_dump().values()) == forecast.memory.peak_allocated_bytes


def test_several_cards_are_forecast_from_one_run():
    forecasts, _ = run("gpt_loop.py", gpus=("t4", "h100-80gb"), total_steps=1000)
    assert [f.gpu for f in forecasts] == ["t4", "h100-80gb"]
    assert forecasts[0].step.seconds.expected > forecasts[1].step.seconds.expected
    assert forecasts[0].run.total_steps == 1000
    assert forecasts[0].run.cost == pytest.approx(
        device("t4").price_per_hour * forecasts[0].run.seconds.expected / 3600
    )


def test_files_stay_as_they_are_and_batch_norm_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("mine")
    Path("data.txt").write_text("mine")
    (forecast,), result = run("cnn_saves.py", most_steps=10)
    assert result.error == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.txt", "notes.txt"]
    assert Path("notes.txt").read_text() == Path("data.txt").read_text() == "mine"
    net = [3 * 16 * 9 + 16, 4 * 16, 16 * 4 + 4]
    assert result.saved_bytes == 4 * (FLOAT_BYTES * sum(net) + 8)
    assert (forecast.run.checkpoints_written, 4 * forecast.run.checkpoint_bytes) == (4, result.saved_bytes)


def test_a_caught_out_of_memory_frees_what_the_failed_step_held(capsys):
    (forecast,), result = run("halves_on_oom.py")
    assert result.error == ""
    output = capsys.readouterr().out
    assert "caught CUDA out of memory" in output
    batch = int(output.split("BATCH ")[1].split()[0])
    # input, two hidden tensors and the output, with the gradients of two: the next size would not fit 14.6 GiB
    assert 131_072 <= batch <= 262_144
    assert "True" in output.splitlines()[-1]
    assert forecast.memory.peak_allocated_bytes < device("t4").memory_bytes


def test_out_of_memory_names_the_line_and_what_is_alive():
    (forecast,), result = run("dies_of_oom.py")
    assert (result.exit_code, forecast.fits) == (1, False)
    assert forecast.out_of_memory is not None
    assert forecast.out_of_memory.line == "dies_of_oom.py:6"
    assert forecast.out_of_memory.tried_bytes == 2**32
    assert forecast.out_of_memory.alive[0]["bytes"] == 2**32
    assert {each["line"] for each in forecast.out_of_memory.alive} == {"dies_of_oom.py:5", "dies_of_oom.py:6"}


def test_a_card_that_is_too_small_does_not_end_the_others():
    """The largest is run again, as what the first did ends where it was full."""
    small, large, other = run("needs_much.py", gpus=("t4", "h100-80gb", "a100-80gb"))[0]
    assert (small.fits, large.fits, other.fits) == (False, True, True)
    assert small.out_of_memory.line == "needs_much.py:5"
    assert (small.script.steps_seen, large.script.steps_seen) == (0, 3)
    held = [forecast.memory.breakdown.other_bytes for forecast in (large, other)]
    assert all(20 * 2**30 < each < 20.1 * 2**30 for each in held)  # beside the workspaces of each card
    assert large.step.seconds.expected < other.step.seconds.expected


def test_a_card_without_a_peak_is_left_out_and_said():
    """An fp8 product has no dense peak on an A100."""
    (forecast,), _ = run("fp8_product.py", gpus=("h100-80gb", "a100-40gb"))
    assert forecast.gpu == "h100-80gb"
    assert any("a100-40gb" in warning and "float8" in warning for warning in forecast.warnings)
    with pytest.raises(MissingPeak):
        run("fp8_product.py", gpus=("a100-40gb",))


def test_one_rank_of_a_sharded_job():
    command = ["torchrun", "--nproc_per_node", "8", "--nnodes", "2", str(SCRIPTS / "sharded.py")]
    (forecast,), result = forecast_program(parse_command(command), command, [device("a100-80gb")])
    assert result.error == ""
    assert forecast.world_size == 16
    shard = 4 * 1024 * 1024 * FLOAT_BYTES / 16
    assert forecast.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * shard, rel=0.01)
    assert not torch.distributed.is_initialized()
    assert any("No network is named" in warning for warning in forecast.warnings)


@pytest.mark.medium
def test_a_slow_network_is_waited_for(tmp_path):
    """The same ranks in one machine, over InfiniBand, over Ethernet, and over what nccl-tests measured."""
    measured = tmp_path / "run.txt"
    ranks = [f"#  Rank {r:2} Group  0 Pid 1 on  n{r // 2} device  {r % 2} [0x10] NVIDIA A100" for r in range(4)]
    row = "     1048576        262144     float     sum      -1    9e6    0.0    0.0      0    9e6    0.0    0.0      0"
    measured.write_text("\n".join(["# Collective test starting: all_gather_perf", *ranks, row]))
    command = ["python", str(SCRIPTS / "sharded.py")]
    seconds = []
    for nodes, network in ((1, None), (2, "ib-ndr400"), (2, "ethernet-10g"), (2, str(measured))):
        program = dataclasses.replace(parse_command(command, 4 // nodes, nodes), network=network)
        (forecast,), _ = forecast_program(program, command, [device("a100-80gb")])
        seconds.append(forecast.step.phases.communication_seconds)
        assert not any("No network" in warning for warning in forecast.warnings)
    assert seconds == sorted(seconds)
    assert seconds[-1] > 9


def test_everything_is_put_back():
    before = torch.cuda.is_available, torch.compile, torch.save, os.stat, open, os.environ.get("RANK"), list(sys.argv)
    run("gpt_loop.py", most_steps=1)
    assert before == (
        torch.cuda.is_available, torch.compile, torch.save, os.stat, open, os.environ.get("RANK"), list(sys.argv)
    )  # fmt: skip
    assert not torch.cuda.is_available() or torch.cuda.device_count() > 0
    assert torch.zeros(3).tolist() == [0.0, 0.0, 0.0]


def small_net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 4))


def test_three_doors_agree():
    """The same step by virtual_cuda and by forecast_step, with tensors made inside it."""

    def build():
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step():
            net(torch.zeros(16, 3, 32, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return net, step

    forecast = forerun.forecast_step(build, gpu="t4")
    with forerun.virtual_cuda("t4") as gpu:
        net = small_net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            net(torch.zeros(16, 3, 32, 32, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert torch.cuda.max_memory_allocated() > 0
        assert net[1].num_batches_tracked.item() == 2
    assert gpu.memory.peak_allocated_bytes == pytest.approx(forecast.memory.peak_allocated_bytes, rel=0.01)
    assert gpu.clock.seconds > 0


def test_deepspeeds_launcher_adds_the_local_rank(tmp_path):
    script = str(tmp_path / "train.py")
    Path(script).write_text("")
    program = parse_command(["deepspeed", "--num_gpus=4", "--master_port", "29501", script, "--deepspeed", "ds.json"])
    assert (program.world_size, program.words(2)) == (4, [script, "--local_rank=2", "--deepspeed", "ds.json"])
    assert program.variables(2)["LOCAL_RANK"] == "2"
    named = parse_command(["deepspeed", "--include", "localhost:1,3", "--no_local_rank", script])
    assert (named.world_size, named.words()) == (2, [script])
    assert parse_command(["deepspeed", script]).unknown_ranks
    with pytest.raises(InvalidSettings, match="deepspeed does not take"):
        parse_command(["deepspeed", "--gpus", "4", script])


def test_a_command_that_a_package_installed_is_a_program(tmp_path, monkeypatch):
    command = tmp_path / "trainer"
    command.write_text("#!/usr/bin/env python3\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = parse_command(["SEED=3", "trainer", "full", "--steps", "3"])
    assert (program.target, program.arguments) == (str(command), ("full", "--steps", "3"))
    assert program.variables() == {"SEED": "3"}


@pytest.mark.medium
def test_the_trainer_runs_with_evaluation_and_its_length_is_known():
    (forecast,), result = run("hf_trainer.py", gpus=("a10",))
    assert result.error == ""
    assert forecast.script.length_known_from == "the Trainer's max_steps"
    assert forecast.run.total_steps == 30
    assert forecast.script.steps_seen < 30


@pytest.mark.medium
def test_the_command_prints_one_document_and_the_scripts_own_code(tmp_path):
    """--json: the document alone on stdout; exit 3 where it does not fit, 2 for a bad command, else the script's own."""

    def forerun_exec(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "forerun", "exec", "--gpu", "t4", "--json", "--", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    done = forerun_exec("python", str(SCRIPTS / "gpt_loop.py"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "forerun.forecast/1"
    assert set(document["script"]) == {
        "command", "exit_code", "steps_seen", "warm_from_step", "wall_seconds", "host_peak_bytes", "length_known_from",
    }  # fmt: skip
    assert document["assumed"][0]["line"].startswith("gpt_loop.py:")
    assert document["out_of_memory"] is None
    assert "step 0 loss 1.000" in done.stderr
    assert forerun_exec("python", str(SCRIPTS / "dies_of_oom.py")).returncode == 3
    assert forerun_exec("python", "nowhere.py").returncode == 2
    (tmp_path / "fails.py").write_text("import sys; sys.exit(5)")
    assert forerun_exec("python", "fails.py").returncode == 5
    assert list(tmp_path.iterdir()) == [tmp_path / "fails.py"]


@pytest.mark.parametrize("which", ["first", "second"])
def test_fully_sharded_layers_keep_a_quarter(which):
    command = ["python", str(SCRIPTS / "fully_sharded.py"), which]
    (forecast,), result = forecast_program(parse_command(command, 4), command, [device("h100-80gb")])
    assert result.error == ""
    shard = 4 * 1024**2 * FLOAT_BYTES // 4
    assert forecast.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * shard, rel=0.01)
    assert forecast.step.samples_per_second == pytest.approx(4 * 8 / forecast.step.seconds.expected)
    scattered = [each for each in forecast.collectives if "reduce_scatter" in each.name]
    assert sum(each.count for each in scattered) == 4
    assert {(each.ranks, each.machines) for each in forecast.collectives} == {(4, 1)}
    assert forecast.findings == []


@pytest.mark.parametrize("which", ["host", "host-original"])
def test_fully_sharded_layers_live_on_the_host(which):
    """Autograd's graph knows the flat parameters below Python, which go to the host and back within a step."""
    command = ["python", str(SCRIPTS / "fully_sharded.py"), which]
    (forecast,), result = forecast_program(parse_command(command, 4), command, [device("h100-80gb")])
    assert result.error == ""
    layer = 1024**2
    assert forecast.memory.breakdown.optimizer_state_bytes == forecast.memory.breakdown.parameter_bytes == 0
    assert [(each.name, each.count, each.bytes) for each in forecast.collectives] == [
        ("_allgather_base_", 4, 2 * layer), ("_allgather_base_", 4, 2 * layer), ("_reduce_scatter_base_", 4, 2 * layer),
    ]  # fmt: skip
    assert any(
        "take at least 16.0 MiB of the host's memory for each GPU, 64.0 MiB for the 4" in w for w in forecast.warnings
    )
    assert forecast.findings == []


def test_a_program_that_fails_before_its_first_step_has_no_forecast_table(tmp_path):
    (tmp_path / "broken.py").write_text("import torch\ntorch.zeros(4, device='cuda')\nraise ValueError('mine')\n")
    command = ["python", str(tmp_path / "broken.py")]
    forecasts, result = forecast_program(parse_command(command), command, [device("t4")])
    assert (result.exit_code, forecasts[0].script.steps_seen) == (1, 0)
    assert "ValueError: mine" in result.error
    first, second, *_ = (str(view) for view in program_tables(forecasts, "broken"))
    assert "before its first optimizer step, so nothing is forecast" in first
    assert "exit code 1" in second


def test_a_program_that_asks_for_more_gpus_hears_how_to_have_them(tmp_path):
    """What Lightning raises where a machine has fewer than its Trainer is told."""
    text = "You requested gpu: [0, 1, 2, 3]\\n But your machine only has: [0]"
    (tmp_path / "broken.py").write_text(f"raise ValueError('{text}')\n")
    command = ["python", str(tmp_path / "broken.py")]
    _, result = forecast_program(parse_command(command), command, [device("t4")])
    assert "forerun exec --nproc-per-node 4" in result.error


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is installed")
@pytest.mark.parametrize(("name", "is_told"), [("triton.language", True), ("tritonic", False)])
def test_a_failed_import_shows_the_program_alone_and_what_a_machine_with_cuda_has(tmp_path, name, is_told):
    (tmp_path / "kernels_of_mine.py").write_text(f"import {name}\n")
    (tmp_path / "broken.py").write_text("import kernels_of_mine\n")
    command = ["python", str(tmp_path / "broken.py")]
    _, result = forecast_program(parse_command(command), command, [device("t4")])
    assert result.exit_code == 1
    assert ("pip install --no-deps triton" in result.error) == is_told
    assert [line.split(",")[0] for line in result.error.splitlines() if "File" in line] == [
        f'  File "{tmp_path / each}"' for each in ("broken.py", "kernels_of_mine.py")
    ]


def test_context_parallel_layers_are_computed_again():
    """Attention runs three times for each of two layers: forward, again, backward; on a quarter of the sequence."""
    command = ["torchrun", "--nproc-per-node", "4", str(SCRIPTS / "context_checkpointed.py")]
    (forecast,), result = forecast_program(parse_command(command), command, [device("h100-80gb")])
    assert (result.error, forecast.script.steps_seen) == ("", 3)
    last = result.watcher.spans[-1]
    trace = result.session.recorder.trace
    names = [trace.calls[trace.ops[i].call].name for kind, i in trace.events[last.begin : last.end] if kind == OP]
    attention = [name for name in names if "attention" in name]
    forward, backward = ([name for name in attention if ("backward" in name) == is_back] for is_back in (False, True))
    assert len(forward) == 2 * len(backward) == 2 * 2 * 4


@pytest.mark.medium
@pytest.mark.parametrize(("name", "is_paged"), [("adamw_bnb_8bit", False), ("paged_adamw_8bit", True)])
def test_the_trainers_optimizers_in_eight_bits(name, is_paged):
    """Two bytes a parameter, but eight for embeddings, and four for 256 elements each of two states."""
    pytest.importorskip("bitsandbytes")
    (forecast,), result = run("eight_bit_trainer.py", name, gpus=("a10",))
    assert (result.error, forecast.script.steps_seen) == ("", 3)
    embedded, others = 2048 * 256, forecast.parameters.total - 2048 * 256
    expected = embedded * 8 + others * (2 + 2 * 4 / 256)
    state, paged = forecast.memory.breakdown.optimizer_state_bytes, result.session.recorder.trace.paged_bytes
    assert (paged > 0) is is_paged
    assert state + paged == pytest.approx(expected, rel=0.02)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_profiler_looks_at_the_host_alone(tmp_path):
    code = """
import torch
from torch.profiler import ProfilerActivity, profile, schedule
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=schedule(wait=1, warmup=1, active=1),
    with_stack=True, with_modules=True, profile_memory=True, record_shapes=True,
    on_trace_ready=lambda p: print(p.key_averages().table(sort_by="cuda_time_total", row_limit=2)),
) as profiler:
    model = torch.nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(64, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
"""
    (tmp_path / "train.py").write_text(code)
    (forecast,), result = run(str(tmp_path / "train.py"))
    assert result.error == ""
    assert forecast.script.steps_seen == 3


def test_a_table_of_a_column_and_a_row_is_not_computed_on_the_host():
    """Of 17 thousand millions of numbers, which a small mask would follow."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with forerun.virtual_cuda("b200") as gpu:
        places = torch.arange(2**17, device="cuda")
        assert int((places[:8, None] >= places[:8]).sum()) == 36
        table = places[:, None] >= places
        assert places[:4096].reshape(64, 64)[places[:64, None], places[None, :64]].tolist()[1] == list(range(64, 128))
        assert table[0, 0].item() in (True, False)
    assert gpu.memory.peak_allocated_bytes > 2**34
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20
