"""Results of operators on fake tensors, where PyTorch's own fake kernel is missing or too strict."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from forerun.virtual.layouts import laid_out
from forerun.virtual.recurrent import KERNELS as OWN_KERNELS

aten = torch.ops.aten
ONLY_IN_PLACE = {aten._fused_sgd_, aten._fused_adagrad_}
"""Operators that change their arguments and return nothing; PyTorch 2.13 has no fake kernel for them."""


_count_and_text: ContextVar[tuple[int, str] | None] = ContextVar("count_and_text", default=None)


@contextlib.contextmanager
def nonzero_elements(count: int, text: str) -> Iterator[None]:
    """Elements that are not zero are `count` inside, as `text` says; nowhere else does a trace know how many."""
    token = _count_and_text.set((count, text))
    try:
        yield
    finally:
        _count_and_text.reset(token)


def run_fake(func: Any, args: Any, kwargs: Any, assumed: list[str]) -> Any:
    """The result of an aten call on fake tensors, where PyTorch's own fake kernel is missing or too strict too.

    What had to be assumed of values is added to `assumed`.
    """
    packet = func._overloadpacket
    if packet in ONLY_IN_PLACE:
        return None
    if packet is aten.nonzero and (answer := _count_and_text.get()) is not None:
        count, text = answer
        if text not in assumed:
            assumed.append(text)
        return args[0].new_empty((count, args[0].dim()), dtype=torch.int64)
    if packet in SYNCHRONISED_NORM:
        return SYNCHRONISED_NORM[packet](*args)
    if packet in OWN_KERNELS:
        return OWN_KERNELS[packet](func, args, kwargs)
    if func is aten.index.Tensor and _is_of_replaced_rows():
        return replaced_rows(func, args, assumed)
    if packet is aten._grouped_mm:
        return grouped_product(func, args, kwargs)
    if func in WIDER_SUMS:
        return wider_sum(*args, **kwargs)
    if func is aten._ctc_loss.default:
        return ctc_loss(*args)
    if func is aten._ctc_loss_backward.default:
        return torch.empty_like(args[1])
    if func is aten.native_group_norm.default:
        return group_norm(args, *func(*args, **kwargs))
    if func is aten.native_group_norm_backward.default:
        image, *of_parameters = func(*args, **kwargs)
        return (image if image is None else image.to(args[1].dtype), *of_parameters)
    return laid_out(packet, args, func(*args, **kwargs))


WRITES_OF_ROWS = ("IndexPutBackward0", "torch::autograd::CopySlices")
"""Nodes of autograd behind such a write, the second where `x` is a view."""


def _is_of_replaced_rows() -> bool:
    """Whether autograd asks for the gradient of what was written where a mask is true (`x[mask] = row`)."""
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in WRITES_OF_ROWS


def replaced_rows(func: Any, args: Any, assumed: list[str]) -> torch.Tensor:
    """Rows of the gradient (rows, width) where a mask is true: none where no value of the mask is known.

    Such a mask says where a token of a special kind stands (T5Gemma 2's end of an image), which is seldom, or which
    frames of sound chance leaves out (SpeechT5), where each counts one row of this gradient and nothing else.
    """
    try:
        return func(*args)
    except DynamicOutputShapeException:
        gradient, (mask, *others) = args
        if others:
            raise
        assumed.append("gradient of rows that a mask replaces: none are")
        return gradient.new_empty((0, *gradient.shape[mask.dim() :]))


def wider_sum(
    added: torch.Tensor, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, **kwargs: Any
) -> torch.Tensor:
    """The product of 16-bit matrices and what is added to it, in another dtype.

    PyTorch takes the dtype for a factor of the sum (`addmm` and `baddbmm` of torch/_decomp/decompositions.py, 2.11; the
    latter in 2.13 too).
    """
    out = kwargs.get("out")
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=dtype) if out is None else out


WIDER_SUMS = {aten.addmm.dtype, aten.addmm.dtype_out, aten.baddbmm.dtype, aten.baddbmm.dtype_out}


def group_norm(args: Any, image: torch.Tensor, *statistics: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Normalised images, and means and inverse deviations in the dtype of the weight.

    Weights are of fp32 beside images of 16 bits where autocast leaves them so, on a CPU: PyTorch's fake kernels take
    the images' dtype for the statistics and fp32 for the images' gradient; real ones do neither
    (`aten/src/ATen/native/group_norm.cpp`, `param_scalar_type` and native_group_norm_backward, 2.13).
    """
    weight = args[1]
    return image, *(each.to(image.dtype if weight is None else weight.dtype) for each in statistics)


def _statistics(image: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation of each channel, in fp32 at least."""
    dtype = torch.promote_types(image.dtype, torch.float32)
    return image.new_empty(image.shape[1], dtype=dtype), image.new_empty(image.shape[1], dtype=dtype)


def _reduced(gradient: torch.Tensor, image: torch.Tensor, *others: Any) -> tuple[torch.Tensor | None, ...]:
    """Two sums for each channel, and the gradients of weight and bias, each where it is asked for."""
    weight, is_wanted = others[2], others[3:6]
    kind = image if weight is None else weight
    rows = [*_statistics(image), *(kind.new_empty(image.shape[1]) for _ in range(2))]
    return tuple(row if flag else None for row, flag in zip(rows, (is_wanted[0], *is_wanted), strict=True))


SYNCHRONISED_NORM = {
    aten.batch_norm_stats: _statistics,
    aten.batch_norm_gather_stats: _statistics,
    aten.batch_norm_gather_stats_with_counts: _statistics,
    aten.batch_norm_elemt: lambda image, *_: torch.empty_like(image),
    aten.batch_norm_backward_reduce: _reduced,
    aten.batch_norm_backward_elemt: lambda gradient, image, *_: torch.empty_like(image),
}
"""Kernels of `nn.SyncBatchNorm` (aten/src/ATen/native/cuda/Normalization.cu, 2.13), which has none but CUDA's."""


def ctc_loss(scores: torch.Tensor, targets: torch.Tensor, *lengths: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sample (B,) and what its backward pass needs (B, frames, 2 · longest target + 1).

    PyTorch's fake kernel takes its sizes for unknown; with lengths on the host they are not
    (`aten/src/ATen/native/cuda/LossCTC.cu`, `ctc_loss_gpu_template`, 2.13). `scores` are (frames, B, labels).
    """
    frames, size = scores.shape[:2]
    longest = max(lengths[1], default=0)
    return scores.new_empty(size), scores.new_empty(size, frames, 2 * longest + 1)


def grouped_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Grouped matrix product in the dtype of its inputs.

    CUDA takes fp32 and fp16 by a fallback (`aten/src/ATen/native/cuda/GroupedBlas.cpp`, PyTorch 2.13), but the fake
    kernel only bf16: work out the shape in bf16, which is not recorded.
    """
    dtype = args[0].dtype
    narrow = [a.to(torch.bfloat16) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    return func(*narrow, **kwargs).to(dtype)
