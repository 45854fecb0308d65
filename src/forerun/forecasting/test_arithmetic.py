"""Number formats that arithmetic is done in."""

import pytest
import torch
from torch import nn

import forerun
from forerun.hardware.catalogue import device


def pictures(batch=8):
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 512, 3, padding=1))

    def step():
        model(torch.zeros(batch, 3, 64, 64)).sum().backward()

    return model, step


def products():
    model = nn.Linear(2048, 2048)
    return model, lambda: model(torch.zeros(512, 2048)).sum().backward()


@pytest.mark.parametrize(("gpu", "peak"), [("a100-40gb", "tfloat32"), ("v100-32gb", "float32")])
def test_convolutions_in_fp32_run_on_tensor_cores_unasked(gpu, peak):
    """cuDNN's switch is on, and products of matrices have another one."""
    forecast = forerun.forecast_step(pictures, gpu=gpu)
    step = forecast.step
    assert step.mfu == pytest.approx(step.model_flops / (step.seconds.expected * device(gpu).peak(peak)), rel=1e-6)
    kinds = {finding.kind for finding in forecast.findings}
    assert ("fp32-product" in kinds) == (peak == "float32")


def test_products_in_fp32_ask_for_tensor_cores():
    (finding,) = (each for each in forerun.forecast_step(products, gpu="a100-40gb").findings)
    assert finding.kind == "fp32-product"
    assert "use them" in finding.text
    assert "cudnn" not in finding.text


def test_convolutions_without_tf32_name_its_switch():
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        findings = forerun.forecast_step(pictures, gpu="a100-40gb").findings
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    (finding,) = findings
    assert "torch.backends.cudnn.allow_tf32 and" in finding.text
