"""What `forerun exec` writes beside its forecast: snapshot and trace of unmodified scripts agree with the forecast."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.cuda import _memory_viz as viz

from forerun.forecasting.program import forecast_program
from forerun.forecasting.program_account import account_of
from forerun.hardware.catalogue import device
from forerun.memory.snapshot import read_snapshot, replay_snapshot
from forerun.memory.snapshot_file import snapshot_of
from forerun.report.chrome_trace import chrome_trace
from forerun.units import MICRO
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"


def account(script, gpu="t4"):
    command = ["python", str(SCRIPTS / script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device(gpu)])
    return account_of(run, device(gpu), "python " + script), forecast


@pytest.fixture(scope="module")
def gpt():
    return account("gpt_loop.py")


def test_a_snapshot_has_the_peaks_of_the_forecast(gpt):
    played, forecast = gpt
    snapshot = snapshot_of(played.history, played.trace, played.host_seconds)
    replay = replay_snapshot(snapshot)
    assert replay.allocated_bytes == forecast.memory.peak_allocated_bytes
    assert replay.simulated_reserved_bytes == replay.recorded_reserved_bytes == forecast.memory.peak_reserved_bytes
    assert replay.unknown_frees == 0
    assert "total_reserved" in viz.segsum(snapshot)
    times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
    assert times == sorted(times)
    assert times[-1] > 0


def test_what_is_left_after_the_last_step_is_what_lasts(gpt):
    played, forecast = gpt
    snapshot = snapshot_of(played.history, played.trace, played.host_seconds)
    lines = viz.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
    lasting = sum(int(line.rpartition(" ")[2]) for line in lines if ";kind:0:parameter;" in line)
    assert lasting == pytest.approx(forecast.memory.breakdown.parameter_bytes, rel=0.01)
    assert any("module:0:Model.blocks.0.qkv.weight;gpt_loop.py:44:" in line for line in lines)


def test_a_trace_has_the_device_time_of_the_forecast(gpt):
    played, forecast = gpt
    events = chrome_trace(played)["traceEvents"]
    steps = {e["name"]: e for e in events if e["name"].startswith("step ") and e["pid"] == 1}
    assert list(steps) == ["step 1 (warm-up)", "step 2 (warm)", "step 3 (warm)"]
    last = steps["step 3 (warm)"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e["ts"] >= last["ts"] - 1e-3]
    phases = forecast.step.phases
    device_seconds = phases.forward_seconds + phases.backward_seconds + phases.optimizer_seconds
    assert sum(e["dur"] for e in kernels) * MICRO == pytest.approx(device_seconds, rel=1e-3)
    assert last["dur"] * MICRO == pytest.approx(forecast.step.seconds.expected, rel=0.02)
    modules = {e["args"].get("module") for e in kernels}
    assert "Model.blocks.1.qkv" in modules


def test_a_program_that_runs_out_of_memory_has_its_failure_last():
    played, forecast = account("dies_of_oom.py")
    entries = snapshot_of(played.history, played.trace, played.host_seconds)["device_traces"][0]
    assert entries[-1]["action"] == "oom"
    assert entries[-1]["size"] == forecast.out_of_memory.tried_bytes
    assert entries[-1]["device_free"] < entries[-1]["size"]
    assert max(entry["size"] for entry in entries if entry["action"] == "alloc") == 2**32


def test_a_caught_failure_stands_between_steps():
    played, _ = account("halves_on_oom.py", gpu="rtx-3090")
    actions = [entry["action"] for entry in snapshot_of(played.history, played.trace, [])["device_traces"][0]]
    assert "oom" in actions[1:-1]
    assert actions[-1] != "oom"


@pytest.mark.medium
def test_the_command_writes_the_files(tmp_path):
    """Where it was told to, also when the script changes its folder; a folder that is missing is an error at once."""
    script = tmp_path / "moves.py"
    script.write_text(
        "import os, torch\nos.chdir('/')\nnet = torch.nn.Linear(8, 8).cuda()\n"
        "o = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    net(torch.ones(2, 8).cuda()).sum().backward(); o.step(); o.zero_grad()\n"
    )

    def forerun_exec(*options):
        command = [sys.executable, "-m", "forerun", "exec", "--gpu", "t4", *options, "--", "python", "moves.py"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env={**os.environ})

    result = forerun_exec("--snapshot", "s.pickle", "--trace", "t.json", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["schema"] == "forerun.forecast/1"
    assert replay_snapshot(read_snapshot(tmp_path / "s.pickle")).requests > 4
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["gpu"] == "t4"
    result = forerun_exec("--snapshot", "nowhere/s.pickle")
    assert result.returncode == 2
    assert "nowhere, which is no folder" in result.stderr.replace("\n", "")


def test_the_page_is_written_below_runs_with_every_part(tmp_path, monkeypatch, capsys):
    from typer.testing import CliRunner

    from forerun.cli.main import command_line

    monkeypatch.chdir(tmp_path)
    command = ["exec", "--gpu", "a10", "--html", "--json", "--", "python", str(SCRIPTS / "faulty.py"), "grows"]
    result = CliRunner().invoke(command_line(), command)
    assert result.exit_code == 0, result.output
    (page,) = tmp_path.glob("runs/exec-faulty-*/report.html")
    text = page.read_text()
    for part in (
        "Fits:",
        "<b>grows</b>",
        'svg class="flame"',
        "Kernels by line",
        "How the program ran",
        "faulty.py:16",
    ):
        assert part in text
    assert str(page) in capsys.readouterr().err or str(page) in result.stderr


def test_virtual_cuda_knows_what_memory_is_for():
    import torch

    import forerun

    width, float_bytes = 512, 4
    with forerun.virtual_cuda("t4") as gpu:
        net = torch.nn.Linear(width, width, bias=False).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        net(torch.ones(2, width, device="cuda")).sum().backward()
        optimizer.step()
        kept = torch.empty(2**26, device="cuda")  # the peak is here, when all of it is alive
    breakdown = gpu.memory.breakdown
    size = width**2 * float_bytes
    assert (breakdown.parameter_bytes, breakdown.gradient_bytes, breakdown.optimizer_state_bytes) == (size,) * 3
    assert gpu.card.fits
    assert gpu.card.device_bytes.expected > kept.numel() * float_bytes
    assert all(line.startswith("test_exports.py:") for line in gpu.trace.lines.values())
