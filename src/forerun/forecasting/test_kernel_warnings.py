"""Warnings about kernels reach the reader on every door."""

import re

import pytest
import torch
from torch import nn

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command


def build_lstm():
    model = nn.LSTM(8, 16)

    def step():
        model(torch.zeros(4, 2, 8))[0].sum().backward()

    return model, step


def test_recurrent_layers_are_uncertain():
    forecast = forerun.forecast_step(build_lstm, gpu="t4")
    assert sum("cuDNN" in warning for warning in forecast.warnings) == 1


TINY = {"name": "a", "workload": "causal-lm", "precision": "bf16-mixed", "data": {"examples": 8},
        "batch": {"micro_batch_size": 2, "sequence_length": 64}}  # fmt: skip


def fall_backs(forecast):
    return [warning for warning in forecast.warnings if "falls back to plain arithmetic" in warning]


@pytest.mark.parametrize(
    ("attention", "gpu", "precision", "why", "remedy"),
    [
        ("sdpa:math", "a100-40gb", "bf16-mixed", "asks for math", "Set model.attention to auto"),
        ("auto", "t4", "fp16-mixed", "different numbers of heads", "flash_attention_2"),
        ("auto", "a100-40gb", "bf16-mixed", None, None),
    ],
)
def test_a_fall_back_to_math_is_said_with_its_cost_and_its_remedy(attention, gpu, precision, why, remedy):
    settings = {**TINY, "precision": precision, "model": {"name": "tiny-llama", "attention": attention}}
    warnings = fall_backs(forerun.forecast(settings, gpu=gpu))
    assert len(warnings) == (why is not None)
    for warning in warnings:
        assert why in warning
        assert remedy in warning
        assert "a call and" in warning


def build_attention():
    model = nn.Linear(60, 60)

    def step():
        x = model(torch.zeros(2, 8, 128, 60, dtype=torch.float32)).to(torch.bfloat16)
        nn.functional.scaled_dot_product_attention(x, x, x).float().sum().backward()

    return model, step


def test_a_step_function_gets_the_warning_too():
    (warning,) = fall_backs(forerun.forecast_step(build_attention, gpu="a100-40gb"))
    assert "heads of 60 are no multiple of 8" in warning
    assert re.search(r"Its scores take 1(\.0+)? MiB a call", warning)


PICTURES = """
import torch
from torch import nn
torch.backends.cudnn.benchmark = {tries}
torch.use_deterministic_algorithms({sums})
net = nn.{layer}.cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(2, 3, 8, 8).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("tries", "layer", "is_said"), [(True, "Conv2d(3, 4, 3)", True), (False, "Conv2d(3, 4, 3)", False), (True, "Linear(8, 4)", False)]
)  # fmt: skip
def test_algorithms_that_are_tried_are_told(tries, layer, is_said, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PICTURES.format(tries=tries, layer=layer, sums=False))
    command = ["python", str(script)]
    before = torch.backends.cudnn.benchmark
    forecasts, run = forecast_program(parse_command(command), command, [device("t4")])
    assert run.exit_code == 0, run.error
    assert any("cudnn.benchmark" in warning for warning in forecasts[0].warnings) == is_said
    assert torch.backends.cudnn.benchmark is before


SWITCHES = """
import torch
from torch import nn
torch.backends.cuda.matmul.allow_tf32 = {products}
torch.backends.cudnn.allow_tf32 = {convolutions}
net = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.Flatten(), nn.Linear(256 * 32 * 32, 512)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(64, 256, 32, 32).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.medium
def test_switches_of_tf32_are_those_of_the_program_and_of_no_use_to_an_older_card(tmp_path):
    """`allow_tf32 = True` stands in scripts for any card; a T4 ran into "No dense peak for tfloat32"."""
    script, seconds = tmp_path / "train.py", {}
    command = ["python", str(script)]
    for gpu in ("a100-40gb", "t4"):
        for switches in ((True, True), (False, True), (True, False)):
            script.write_text(SWITCHES.format(products=switches[0], convolutions=switches[1]))
            (forecast,), run = forecast_program(parse_command(command), command, [device(gpu)])
            assert run.exit_code == 0, run.error
            seconds[gpu, switches] = forecast.step.seconds.expected
    assert len({each for (gpu, _), each in seconds.items() if gpu == "t4"}) == 1
    fastest = seconds["a100-40gb", (True, True)]
    assert seconds["a100-40gb", (False, True)] > fastest
    assert seconds["a100-40gb", (True, False)] > 1.3 * fastest


@pytest.mark.parametrize("sums", [True, False])
def test_deterministic_algorithms_are_told(sums, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PICTURES.format(tries=False, layer="Linear(8, 4)", sums=sums))
    command = ["python", str(script)]
    forecasts, run = forecast_program(parse_command(command), command, [device("t4")])
    assert run.exit_code == 0, run.error
    assert any("use_deterministic_algorithms" in warning for warning in forecasts[0].warnings) == sums
    assert not torch.are_deterministic_algorithms_enabled(), "put back as it was"
