"""Where a value is used twice, autograd adds the gradients that come back, and into the older one where it may.

`InputBuffer::accumulate`, `torch/csrc/autograd/input_buffer.cpp` (2.13): no new tensor is made where the engine alone
holds the older gradient and its storage, and neither is of a subclass. Fake tensors are of one, so that PyTorch would
give each such sum memory of its own; an H100's allocator history has none.
"""

import sys
from typing import Any

import torch

aten = torch.ops.aten
ENGINE, BETWEEN = "_engine_run_backward", ("__torch_dispatch__", "_fn", "inner", "unwrapped")
"""What calls an operator that no Python code asked for, and what lies between it and the mode."""


def in_place(func: Any, args: tuple[Any, ...]) -> Any:
    """`func`, or the operator that a GPU would run where autograd itself asks for a sum of two gradients."""
    if func is not aten.add.Tensor or torch.is_grad_enabled() or not _is_of_the_engine():
        return func
    older, newer = args[:2]
    alike = older.shape == newer.shape and older.dtype == newer.dtype and older.is_contiguous()
    return aten.add_.Tensor if alike and _is_held_once(older) else func


def _is_of_the_engine() -> bool:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == ENGINE


HOLDERS, OWNERS, STORAGE_OWNERS = 5, 4, 2
"""References on the way from the engine to `_is_held_once`: Python's to the older gradient, those below Python to it
(other sums wait for the same gradient, say) and to its storage."""


def _is_held_once(tensor: torch.Tensor) -> bool:
    owners = tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]
    of_storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return sys.getrefcount(tensor) <= HOLDERS and owners <= OWNERS and of_storage <= STORAGE_OWNERS
