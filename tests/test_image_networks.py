"""A whole network of convolutions on GPUs that its coefficients were not fitted to, against NVIDIA's published throughput."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import nn

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import device
from forerun.trace import OP, Trace

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of the stages of ResNet-50 (He et al. 2015, arXiv:1512.03385, table 1); the stride is that of
the 3 x 3 convolution, which makes it v1.5."""
IMAGES = 256
TOLERANCE = 0.15
"""Systems differ: data loading, clocks, and cuDNN of 2021; two cards of one kind in the source are 4 % apart."""
MEASURED_ON_A_3090 = ((True, 1220), (False, 827))
"""Channels last or not, and images per second: timm's results of PyTorch 1.12 (commit aa4b5850, Apache-2.0)."""

pytestmark = pytest.mark.medium


class Block(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.layers(images) + self.shortcut(images), True)


def layers() -> Iterator[nn.Module]:
    yield from (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for width, blocks, stride in STAGES:
        for number in range(blocks):
            yield Block(inputs, width, stride if number == 0 else 1)
            inputs = 4 * width
    yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


@cache
def traced(mixed: bool, last: bool = True) -> Trace:
    """One step with SGD."""

    def build():
        layout = torch.channels_last if last else torch.contiguous_format
        model = nn.Sequential(*layers()).to(memory_format=layout)
        images = torch.zeros(IMAGES, 3, 224, 224).contiguous(memory_format=layout)
        labels = torch.zeros(IMAGES, dtype=torch.long)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step():
            with torch.autocast(images.device.type, dtype=torch.float16, enabled=mixed):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, step

    return trace_program(build, device("a100-80gb"))


def test_it_is_a_resnet_50():
    assert traced(True).total_parameters == 25_557_032


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "mixed", "images_per_second"),
    [("a100-80gb", True, 2470), ("v100-16gb", True, 1200), ("v100-32gb", True, 1156), ("a100-80gb", False, 938),
     ("v100-16gb", False, 367), ("v100-32gb", False, 356)],
)  # fmt: skip
def test_resnet_50_is_as_fast_as_published(gpu, mixed, images_per_second):
    """NVIDIA/DeepLearningExamples 291f0d0, PyTorch/Classification/ConvNets/resnet50v1.5, one GPU, NGC 21.03: mixed
    precision, TF32 on the A100, FP32 on V100s. None of it was fitted, nor any convolution on an A100 with tensor cores.
    """
    seconds = replay_clock(traced(mixed, last=mixed), PriorCosts(device(gpu))).seconds
    assert IMAGES / seconds == pytest.approx(images_per_second, rel=TOLERANCE)


@pytest.mark.parametrize(("last", "images_per_second"), MEASURED_ON_A_3090)
def test_resnet_50_is_as_fast_as_timm_measured_it(last, images_per_second):
    """Of the half of the families that was fitted: `benchmarks/vision/rows`, models `resnet50`."""
    seconds = replay_clock(traced(True, last), PriorCosts(device("rtx-3090"))).seconds
    assert IMAGES / seconds == pytest.approx(images_per_second, rel=TOLERANCE)


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090", "l4", "t4", "h100-80gb"])
def test_no_card_is_beyond_its_bounds(gpu):
    """No step is faster than its bytes and its arithmetic allow, nor slower than a few times both."""
    row, trace = device(gpu), traced(True)
    clock = replay_clock(trace, PriorCosts(row))
    warm = [trace.calls[trace.ops[i].call] for kind, i in trace.events[trace.warm_from :] if kind == OP]
    moving = sum(call.bytes_read + call.bytes_written for call in warm) / row.bandwidth_bytes_per_second
    computing = clock.hardware_flops / row.peak("float16")
    assert max(moving, computing) < clock.seconds < 4 * (moving + computing)
