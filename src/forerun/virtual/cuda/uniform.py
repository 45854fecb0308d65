"""Tensors of any size that hold one number everywhere: masks of ones, zeros, and what is computed of them.

The values of such a tensor are one number in memory, seen in its shape with strides of 0. What works on each element
for itself is computed once; views cost nothing.
"""

from typing import Any

import torch
from torch import full

aten = torch.ops.aten
FILLED = {
    aten.zeros: 0, aten.ones: 1, aten.full: None,
    aten.zeros_like: 0, aten.ones_like: 1, aten.full_like: None,
    aten.new_zeros: 0, aten.new_ones: 1, aten.new_full: None,
}  # fmt: skip
"""Operators that make a tensor of one number → that number; None: an argument of theirs. No values of others matter."""
COPIES = {aten._to_copy, aten.clone, aten._unsafe_view, aten.lift_fresh_copy}
MOST_REDUCED = 2**22
"""Elements that are read one by one, as a sum does; more are not followed."""
MOST_COMPARED = 2**24
"""Elements of a host tensor in which it is looked for another number; about 10 ms."""


def is_uniform(value: torch.Tensor) -> bool:
    """Whether a tensor is one number in memory, whatever its shape."""
    return value.numel() > 0 and all(not s or n == 1 for n, s in zip(value.shape, value.stride(), strict=True))


def filled(func: Any, args: Any, kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
    """Values of a tensor that an operator made of one number; None for other operators."""
    packet = func._overloadpacket
    if packet not in FILLED:
        return None
    number = FILLED[packet]
    if number is None:
        place = 1 if packet in (aten.full, aten.full_like) else 2
        number = args[place] if len(args) > place else kwargs.get("fill_value")
    if not isinstance(number, int | float | bool) or not output.numel():
        return None
    return full((), number, dtype=output.dtype, device="cpu").expand(output.shape)


def of_host(source: torch.Tensor) -> torch.Tensor | None:
    """The values of a host tensor that holds one number everywhere; None where it does not."""
    if source.numel() > MOST_COMPARED or source.is_complex() or source.layout is not torch.strided:
        return None
    first, last = (source[(place,) * source.dim()] for place in (0, -1))
    if bool(first != last) or not bool((source == first).all()):
        return None
    return first.clone().expand(source.shape)


def computed_uniformly(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of an operator on tensors that are one number each; None where it is no single tensor of that kind.

    `args` and `kwargs` hold host tensors; a copy's may be any, which is looked through. Reductions read every element,
    up to `MOST_REDUCED` of them.
    """
    if func._overloadpacket in COPIES and args[0].numel() and not is_uniform(args[0]):
        args = (of_host(args[0]), *args[1:])
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    if not tensors or func._schema.is_mutable or not all(map(is_uniform, tensors)):
        return None
    if func._overloadpacket is aten._unsafe_view:
        return aten.view.default(*args)
    if func._overloadpacket in COPIES or torch.Tag.pointwise in func.tags:
        kwargs = {name: value for name, value in kwargs.items() if name != "memory_format"}
        shape = torch.broadcast_shapes(*(each.shape for each in tensors))
        one = func(*map(_one, args), **{name: _one(value) for name, value in kwargs.items()})
        return one.expand(shape) if isinstance(one, torch.Tensor) else None
    if max(each.numel() for each in tensors) > MOST_REDUCED:
        return None
    return func(*args, **kwargs)


def _one(value: Any) -> Any:
    """A tensor of as many dimensions with one element, which decides the same about dtypes; anything else as it is."""
    return value[(slice(0, 1),) * value.dim()] if isinstance(value, torch.Tensor) else value
