"""Lazy layers on the virtual GPU are the layers that they become."""

import pytest
import torch
from torch import nn

import forerun


def network(is_lazy):
    if is_lazy:
        layers = nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.LazyLinear(5)
    else:
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(32, 5)
    return nn.Sequential(*layers[:2], nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), layers[2])


def forecast(is_lazy, is_optimizer_early):
    def build():
        net = network(is_lazy).to("cuda").to(torch.bfloat16)
        image = torch.zeros(4, 3, 16, 16, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(net.parameters()) if is_optimizer_early else None
        net(image)
        optimizer = optimizer or torch.optim.AdamW(net.parameters())

        def step():
            net(image).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return net, step

    return forerun.forecast_step(build, gpu="rtx-3090")


@pytest.mark.parametrize("is_optimizer_early", [True, False])
def test_a_lazy_network_is_forecast_as_the_network_that_it_becomes(is_optimizer_early):
    lazy, plain = forecast(True, is_optimizer_early), forecast(False, is_optimizer_early)
    assert lazy.parameters == plain.parameters
    assert lazy.memory.breakdown == plain.memory.breakdown
    assert lazy.step.seconds == pytest.approx(plain.step.seconds)


def test_weights_are_where_they_were_told_to_be():
    with forerun.virtual_cuda("t4"):
        moved = nn.LazyLinear(4).half().to("cuda")
        made_there = nn.LazyLinear(4, device="cuda", dtype=torch.float16)
        with torch.device("cuda"):
            by_default = nn.LazyLinear(4, dtype=torch.float16)
        on_host = nn.LazyLinear(4)
        for layer in (moved, made_there, by_default):
            layer(torch.zeros(2, 3, device="cuda", dtype=torch.float16))
            assert type(layer) is nn.Linear
            assert (layer.weight.device.type, layer.weight.dtype, tuple(layer.weight.shape)) == (
                "cuda",
                torch.float16,
                (4, 3),
            )
        assert on_host(torch.ones(2, 3)).shape == (2, 4)
        assert on_host.weight.device.type == "cpu"


def test_an_input_elsewhere_is_an_error_as_on_a_card():
    with forerun.virtual_cuda("t4"), pytest.raises(RuntimeError, match="device"):
        nn.LazyLinear(4).to("cuda")(torch.zeros(2, 3))
