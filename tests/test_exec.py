"""Unmodified scripts on a virtual GPU: what they believe, what is forecast, and that nothing they write stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import forerun
from forerun.errors import InvalidSettings
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"
FLOAT_BYTES = 4


def run(script: str, *arguments: str, gpus=("t4",), **options):
    """Forecasts of a script of this folder, and its run."""
    command = ["python", str(SCRIPTS / script), *arguments]
    return forecast_program(parse_command(command), command, [device(name) for name in gpus], **options)


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
    assert forecast.run.checkpoint_bytes == result.saved_bytes


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


def test_one_rank_of_a_sharded_job():
    command = ["torchrun", "--nproc_per_node", "8", "--nnodes", "2", str(SCRIPTS / "sharded.py")]
    (forecast,), result = forecast_program(parse_command(command), command, [device("a100-80gb")])
    assert result.error == ""
    assert forecast.world_size == 16
    shard = 4 * 1024 * 1024 * FLOAT_BYTES / 16
    assert forecast.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * shard, rel=0.01)
    assert not torch.distributed.is_initialized()


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


def test_values_that_are_known_are_right_and_others_are_told():
    with forerun.virtual_cuda("t4") as gpu:
        mask = torch.tensor([1, 0, 1, 1], device="cuda")
        assert mask.sum().item() == 3
        assert mask.nonzero().squeeze(1).tolist() == [0, 2, 3]
        assert torch.arange(6, device="cuda")[mask.cumsum(0)].tolist() == [1, 1, 2, 3]
        assert (mask.bool() & (mask > 0)).all().item() is False
        assert gpu.assumed == []
        unknown = torch.randn(8, device="cuda").sum()
        assert unknown.item() == 1.0
        assert len(gpu.assumed) == 1
        mask.copy_((torch.rand(4, device="cuda") > 0.5).long())
        assert not torch.isnan(unknown)
        assert torch.isfinite(unknown)


def test_products_with_a_dtype_of_their_own_count():
    with forerun.virtual_cuda("a10") as gpu:
        a, b = torch.zeros(64, 32, device="cuda", dtype=torch.bfloat16), torch.zeros(32, 16, device="cuda").bfloat16()
        torch.mm(a, b, out_dtype=torch.float32)
        torch.addmm(torch.zeros(64, 16, device="cuda"), a, b, out_dtype=torch.float32)
    assert gpu.clock.hardware_flops == 2 * (2 * 64 * 32 * 16)


@pytest.mark.parametrize(("fault", "unit"), [("grows", "bytes"), ("no-gradient", "bytes"), ("fp32-product", "seconds")])
def test_faults_are_found_with_their_line(fault, unit):
    (forecast,), result = run("faulty.py", fault, gpus=("a10",))
    assert result.error == ""
    assert [finding.kind for finding in forecast.findings] == [fault]
    (finding,) = forecast.findings
    assert getattr(finding, unit) > 0
    if fault == "grows":
        assert finding.bytes >= 64 * 512 * 2
    if fault == "no-gradient":
        assert finding.bytes == (512 * 512 + 512) * FLOAT_BYTES
    assert finding.line.startswith("faulty.py:")


def test_a_clean_script_has_no_finding():
    (forecast,), _ = run("faulty.py", "none", gpus=("a10",))
    assert forecast.findings == []


def test_an_optimizer_made_before_the_model_moves_updates_what_moved():
    with forerun.virtual_cuda("a10") as gpu:
        net = nn.Linear(1024, 1024, bias=False)  # large enough to have no values on the host
        optimizer = torch.optim.AdamW(net.parameters())
        net.to("cuda")
        net(torch.zeros(4, 1024, device="cuda")).sum().backward()
        optimizer.step()
    assert gpu.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * 1024**2 * FLOAT_BYTES, rel=0.01)


def test_events_tell_the_virtual_time():
    with forerun.virtual_cuda("t4") as gpu:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        matrix = torch.randn(4096, 4096, device="cuda")
        begin.record()
        for _ in range(10):
            matrix @ matrix
        end.record()
        torch.cuda.synchronize()
        milliseconds = begin.elapsed_time(end)
    flops = 10 * 2 * 4096**3
    assert milliseconds > 1000 * flops / device("t4").peak("float32")
    assert milliseconds <= 1000 * gpu.clock.seconds


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "a command is needed"), (["bash", "x.sh"], "Python program"), (["python", "nowhere.py"], "no script"),
        (["python"], "script or -m"), (["torchrun", "--nproc_per_node"], "torchrun does not take"),
    ],
)  # fmt: skip
def test_commands_that_cannot_run_say_why(command, message):
    with pytest.raises(InvalidSettings, match=message):
        parse_command(command)


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
