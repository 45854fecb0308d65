"""What `forerun exec` finds in scripts that waste memory or time: the kind, its cost and the line."""

import re
from pathlib import Path

import pytest
from tests.exec_runs import forecast as forecast_script
from tests.exec_runs import run

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"
FLOAT_BYTES = 4


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


FROM_NUMPY = """
import numpy, torch
from torch import nn

rows = torch.from_numpy(numpy.ones((64, 512))).cuda()
net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda().to(rows.dtype)
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(8):
    net(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_arrays_of_numpy_are_fp64(tmp_path):
    """On a consumer's card at 64 times the cost of fp32."""
    wide, _ = forecast_script(tmp_path, "", head=FROM_NUMPY)
    narrow, _ = forecast_script(tmp_path, "", head=FROM_NUMPY.replace("512)))", "512), numpy.float32))"))
    (finding,) = [each for each in wide.findings if each.kind == "fp64-product"]
    assert finding.line == "train.py:9"
    assert "100.0 % of the arithmetic" in finding.text
    assert "at 64 times the cost of fp32" in finding.text
    flop = 3 * 2 * 64 * 512 * 512 + 2 * 2 * 64 * 512 * 512  # the first layer's input needs no gradient
    assert finding.seconds is not None
    assert finding.seconds > flop / (35.6e12 / 64), "an RTX 3090's peak"
    assert not any(each.kind == "fp64-product" for each in narrow.findings)


def test_bfloat16_before_ampere_is_forecast_and_said():
    """PyTorch says that a T4 supports it; TRL's trainers take it unasked. It was "No dense peak for bfloat16"."""
    (slow, fast), _ = run("faulty.py", "none", gpus=("t4", "a10"))
    (finding,) = slow.findings
    assert finding.kind == "emulated-bf16"
    assert re.search(r"float16 has 1[45]\.\d times its rate here. Most of it at faulty.py:\d+", finding.text)
    assert slow.step.seconds.expected > fast.step.seconds.expected
    assert fast.findings == []


def test_a_clean_script_has_no_finding():
    (forecast,), _ = run("faulty.py", "none", gpus=("a10",))
    assert forecast.findings == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "ranks", "line"),
    [
        ("host-sync", None, 44), ("waits-for-data", None, 61), ("attention-held", None, 40), ("logits-held", None, 68),
        ("accumulation-not-divided", None, 68), ("missing-sampler", 4, 61), ("host-work", None, 73),
    ],
)  # fmt: skip
def test_waste_is_found_with_its_line(fault, ranks, line):
    command = ["python", str(SCRIPTS / "wasteful.py"), fault]
    (forecast,), result = forecast_program(parse_command(command, ranks), command, [device("a100-40gb")])
    assert result.error == ""
    assert [finding.kind for finding in forecast.findings] == [fault]
    assert forecast.findings[0].line.startswith(f"wasteful.py:{line}")


@pytest.mark.medium
@pytest.mark.parametrize(("clean", "ranks"), [("none", None), ("accumulation", None), ("sampler", 4)])
def test_a_clean_language_model_has_no_finding(clean, ranks):
    command = ["python", str(SCRIPTS / "wasteful.py"), clean]
    (forecast,), result = forecast_program(parse_command(command, ranks), command, [device("a100-40gb")])
    assert result.error == ""
    assert forecast.findings == []
    steps = {"none": 160, "accumulation": 40, "sampler": 40}[clean]
    assert (forecast.run.total_steps, forecast.run.steps_per_epoch) == (steps, steps // 2)


def test_findings_of_a_wrapped_loop_name_the_programs_line():
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)  # one for all scripts of this process
    (forecast,), result = run("accelerated.py", gpus=("h100-80gb",))
    assert (result.error, forecast.script.steps_seen) == ("", 3)
    lines = {finding.kind: finding.line for finding in forecast.findings}
    assert lines["fp32-product"] == "accelerated.py:15"
    trace = result.session.recorder.trace
    files = {line.partition(":")[0] for line in trace.lines.values()}
    assert files == {"accelerated.py"}


def test_layers_that_a_step_leaves_out_by_chance_get_their_gradients_in_others(tmp_path):
    """Wav2Vec2 and others drop whole layers."""
    body = """
    layers = nn.ModuleList(nn.Linear(64, 64) for number in range(2)).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for step in range(50):
        layers[step % 2](torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    document, _ = forecast_script(tmp_path, body, head="import torch\nfrom torch import nn\n")
    assert "no-gradient" not in {finding.kind for finding in document.findings}
