"""Lazy layers, whose weights get their sizes from the first input (torch/nn/modules/lazy.py, 2.13).

A weight without a size stays on the host, whatever it is told to move to, and what it was told is kept. Once the first
input has given it a size, it moves there, as any other weight does.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from forerun.virtual.put_back import replaced

Move = Callable[[Tensor], Tensor]
_MOVES = "_forerun_moves"
"""Attribute of a weight without a size: what is done to it when it has one, in order."""


def keep_for_later(weight: Tensor, move: Move) -> bool:
    """Whether a weight has no size yet; then `move` is done to it when it has one."""
    if not is_lazy(weight):
        return False
    setattr(weight, _MOVES, [*getattr(weight, _MOVES, ()), move])
    return True


@contextlib.contextmanager
def sizing_lazy_layers() -> Iterator[None]:
    """While it is active, lazy layers get their weights on the host and move them when they know their sizes."""
    infer = vars(LazyModuleMixin)["_infer_parameters"]

    def infer_and_move(layer: Any, *args: Any, **kwargs: Any) -> None:
        weights = [each for each in (*layer._parameters.values(), *layer._buffers.values()) if each is not None]
        moves: list[Move] = max((getattr(each, _MOVES, []) for each in weights), key=len, default=[])
        infer(layer, *args, **kwargs)
        for move in moves:
            layer._apply(move, recurse=False)

    def make(kind: type[Any], device: Any, dtype: Any, build: Callable[..., Any]) -> Any:
        place = torch.empty(0, device=device, dtype=dtype).device
        weight = build(device="cpu", dtype=dtype)
        if place.type != "cpu":
            keep_for_later(weight, lambda weight: weight.to(place))
        return weight

    def new_parameter(kind: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        return make(kind, device, dtype, lambda **where: parameter(kind, requires_grad, **where))

    def new_buffer(kind: Any, requires_grad: bool = False, device: Any = None, dtype: Any = None, **others: Any) -> Any:
        return make(kind, device, dtype, lambda **where: buffer(kind, requires_grad, **where, **others))

    parameter, buffer = UninitializedParameter.__new__, UninitializedBuffer.__new__
    with (
        replaced(LazyModuleMixin, "_infer_parameters", infer_and_move),
        replaced(UninitializedParameter, "__new__", staticmethod(new_parameter)),
        replaced(UninitializedBuffer, "__new__", staticmethod(new_buffer)),
    ):
        yield
