"""Layout of convolutions' results, as cuDNN returns them."""

import pytest
import torch
from torch import nn

from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import device


def traced(layout):
    """Two convolutions with BatchNorm between them, forward and backward."""

    def build():
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3))
        model = model.to(memory_format=layout)
        images = torch.zeros(2, 3, 20, 20).contiguous(memory_format=layout)

        def step():
            model(images).square().sum().backward()

        return model, step

    return trace_program(build, device("a100-40gb"))


@pytest.mark.parametrize(
    ("layout", "stride"), [(torch.channels_last, (32 * 256, 1, 512, 32)), (torch.contiguous_format, (8192, 256, 16, 1))]
)
def test_results_have_the_layout_of_image_or_weight(layout, stride):
    trace = traced(layout)
    forward = [call for call in trace.calls if call.name == "aten.convolution.default"]
    assert forward[-1].outputs[0].stride == stride
    backward = [call for call in trace.calls if call.name == "aten.convolution_backward.default"]
    for call in backward:
        gradient = call.outputs[-2]  # of the weight: the last is that of the bias
        assert (gradient.stride[1] == 1) == (layout is torch.channels_last)
    # a gradient laid out unlike its weight would be copied into the weight's layout
    assert not any(call.name == "aten.copy_.default" and len(call.outputs[0].shape) == 4 for call in trace.calls)
