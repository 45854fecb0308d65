"""torchvision's own operators beside a PyTorch that they were not built for: CUDA's, where PyTorch is for CPUs.

Its import fails there ("operator torchvision::nms does not exist"): `_meta_registrations.py` describes two operators
that the library which did not load would have defined. Here they are defined by their signatures (torchvision 0.28,
`csrc/ops/*.cpp`): they have shapes, and gradients where Python has them (`_autograd_registrations.py`, from 0.28 on).
"""

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from types import ModuleType

import torch

from forerun.virtual.autocast import register_wide
from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.put_back import replaced

MODULE = "torchvision.extension"
BOXES = ("nms", "qnms")
"""Those that are described at every import; older versions describe the others only where the library loaded."""
_POOLED = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_BACK = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_PLACES = ", ".join(f"SymInt {name}_{side}" for name in ("stride", "pad", "dilation") for side in "hw")
_DEFORMED = (
    f"Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_PLACES}, SymInt groups, "
    "SymInt offset_groups, bool use_mask"
)
SIGNATURES = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"({_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward": f"(Tensor grad, Tensor rois, {_BACK}, {_SIZES}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align": f"({_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": f"({_POOLED}) -> (Tensor, Tensor)",
    "_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor argmax, {_BACK}, {_SIZES}) -> Tensor",
    "ps_roi_align": f"({_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward": (
        f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, int sampling_ratio, {_SIZES}) -> Tensor"
    ),
    "ps_roi_pool": f"({_POOLED}) -> (Tensor, Tensor)",
    "_ps_roi_pool_backward": f"(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, {_SIZES}) -> Tensor",
    "deform_conv2d": f"({_DEFORMED}) -> Tensor",
    "_deform_conv2d_backward": f"(Tensor grad, {_DEFORMED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
}
"""Operators by name; what they return has no values here, as no kernel runs."""
WIDE = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
"""Those with a kernel for autocast."""


@functools.cache
def _library() -> torch.library.Library:
    """What holds the definitions, for the life of the process."""
    return torch.library.Library("torchvision", "FRAGMENT")


@functools.cache
def _compute_wide() -> None:
    """Under autocast, which their own code knows of CUDA alone."""
    for name in WIDE:
        if hasattr(torch.ops.torchvision, name):
            register_wide(_library(), getattr(torch.ops.torchvision, name).default)


def _define(module: ModuleType) -> Callable[[], None]:
    """Define what did not load, before torchvision describes it; returns what undoes the rest."""
    if module._has_ops():
        _compute_wide()
        return lambda: None
    has_gradients = importlib.util.find_spec("torchvision._autograd_registrations") is not None
    for name in SIGNATURES if has_gradients else BOXES:
        if not hasattr(torch.ops.torchvision, name):
            _library().define(f"{name}{SIGNATURES[name]}")
    _compute_wide()
    stack = contextlib.ExitStack()
    if has_gradients:
        stack.enter_context(replaced(module, "_has_ops", lambda: True))
        stack.enter_context(replaced(module, "_check_cuda_version", lambda: -1))  # built without CUDA
    return stack.close


@contextlib.contextmanager
def operators_of_torchvision() -> Iterator[None]:
    """While it is active, torchvision can be imported beside any PyTorch."""
    with after_import(MODULE, _define):
        yield
