"""Memory layout of what convolutions return on CUDA: channels last where image or weight has it.

PyTorch's fake kernels ask for the backend of the tensors' device, and know none for the virtual one: its results would
be contiguous, every layer after the first convolution of a channels-last model would run in the wrong layout, and
gradients would be copied into the layout of their weights.
Source: `cudnn_conv_suggest_memory_format`, `aten/src/ATen/native/ConvUtils.h`; `convolution_backward` lays its
gradients out alike, `aten/src/ATen/native/Convolution.cpp` (PyTorch 2.13).
"""

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from forerun.virtual.backend import DEVICE
from forerun.virtual.describe import device_type

aten = torch.ops.aten
IMAGE_AND_WEIGHT = {aten.convolution: (0, 1), aten.convolution_backward: (1, 2)}
"""Positions of image and weight among the arguments."""


def laid_out(packet: Any, args: tuple[Any, ...], out: Any) -> Any:
    """`out` of a convolution as cuDNN lays it out; of any other operator as it is."""
    if packet not in IMAGE_AND_WEIGHT:
        return out
    image, weight = (args[i] for i in IMAGE_AND_WEIGHT[packet])
    if device_type(image) != DEVICE or image.ndim not in (4, 5):
        return out
    layouts = [suggest_memory_format(tensor) for tensor in (image, weight)]
    layout = next((f for f in layouts if f is not torch.contiguous_format), None)
    if layout is None:
        return out
    if isinstance(out, Tensor):
        return _in(layout, out)
    first, second, bias = out
    return _in(layout, first), _in(layout, second), bias


def _in(layout: torch.memory_format, tensor: Tensor | None) -> Tensor | None:
    if tensor is None or suggest_memory_format(tensor) is layout:
        return tensor
    return torch.empty_like(tensor, memory_format=layout)
