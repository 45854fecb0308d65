"""Values of device tensors where they are known: small ones whose inputs all are, found by running the operator here.

Masks, lengths, gathers and counters decide which way a program goes, so they must be right. A shadow is a real tensor
on the host beside the fake one; a view's shadow is a view of its base's shadow, so that all see writes in place.
Values that nobody can know and that were assumed (`unknown.py`) are followed in the same way, marked as assumed.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import full
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]

from forerun.virtual.cuda.uniform import FILLED, computed_uniformly, filled, is_uniform

aten = torch.ops.aten
MOST_ELEMENTS = 2**20
CHANCE = "_forerun_chance"
"""Attribute of a tensor of chances that nobody can know: each of them, as they are even."""
"""Of the integers and truth values of one operator; larger ones are followed where they are one number everywhere."""
FLOAT_WEIGHT = 128
"""Floating numbers count so many times: they seldom decide anything."""
WRITTEN = {aten.index_put_, aten.scatter_, aten.masked_fill_}
DECIDING = {*WRITTEN, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.nonzero}
"""Operators by which they do: ones at the places of the labels, and where a one is. Here each number counts once."""
SAMPLING = {aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d}
"""Of masks of pixels for the features of a backbone (DETR): each number counts once."""
CHEAP_SHARE = 16
"""Sampling, and copies from or to whole numbers, read each number once: masks of 9 pictures of 1,333 × 1,333 pixels
are followed."""
KEEPS_FIRST = {aten._amp_foreach_non_finite_check_and_unscale_, aten._amp_update_scale_}
"""Of loss scaling: gradients are taken to be finite, so the scale and `found_inf` stay as they were."""
_SHADOW, _ASSUMED = "_forerun_shadow", "_forerun_assumed"


@dataclass(frozen=True)
class Shadow:
    """The values of one tensor on the host."""

    value: torch.Tensor
    is_assumed: bool


def shadow_of(tensor: torch.Tensor) -> Shadow | None:
    """What is known of a fake tensor's values; a real tensor is its own shadow."""
    if not isinstance(tensor, FakeTensor):
        return Shadow(tensor, False)
    value = getattr(tensor, _SHADOW, None)
    if value is None or value.untyped_storage()._cdata in _FORGOTTEN:
        return None
    return Shadow(value, bool(getattr(tensor, _ASSUMED, False)))


def is_assumed(tensor: torch.Tensor) -> bool:
    """Whether a value of a tensor is known, but rests on one that nobody can know."""
    shadow = shadow_of(tensor)
    return shadow is not None and shadow.is_assumed


def set_shadow(tensor: torch.Tensor, value: torch.Tensor, *, is_assumed: bool) -> None:
    """Note the values of a fake tensor."""
    setattr(tensor, _SHADOW, value)
    setattr(tensor, _ASSUMED, is_assumed)


_FORGOTTEN: dict[int, torch.Tensor] = {}
"""Storages of shadows that were overwritten with values nobody knows; kept so that their addresses stay taken."""


def forget(tensor: torch.Tensor) -> None:
    """Values of `tensor`, and of all that share its memory, are no longer known."""
    value = getattr(tensor, _SHADOW, None)
    if value is not None:
        _FORGOTTEN[value.untyped_storage()._cdata] = value


def host_copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A real tensor with the values of a fake one; zeros where they are not known, or chances that are even."""
    shadow = shadow_of(tensor)
    with torch._C._DisableTorchDispatch():
        if shadow is not None and shadow.value.shape == tensor.shape:
            return shadow.value.to(dtype or tensor.dtype, copy=True)
        return full(tensor.shape, getattr(tensor, CHANCE, 0), dtype=dtype or tensor.dtype, device="cpu")


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor in lists, tuples and dictionaries."""
    tensors: list[torch.Tensor] = []
    _gather(tree, tensors)
    return iter(tensors)


def _gather(tree: Any, tensors: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
    elif isinstance(tree, tuple | list):
        for each in tree:
            _gather(each, tensors)
    elif isinstance(tree, dict):
        for each in tree.values():
            _gather(each, tensors)


def computed_here(func: Any, args: Any, kwargs: Any) -> tuple[Any, bool] | None:
    """The results of an operator on the host and whether they rest on assumed values; None where they are not known."""
    shadows = dict[int, Shadow | None]()
    for tensor in tensors_in((args, kwargs)):
        shadow = shadow_of(tensor)
        if shadow is None:
            return None
        shadows[id(tensor)] = shadow
    if (
        func.namespace not in ("aten", "prims")
        or func._overloadpacket in FILLED
        or func._schema.name.startswith("prims::inductor_")  # random numbers of compiled graphs
        or torch.Tag.nondeterministic_seeded in func.tags
        or func._overloadpacket is aten._local_scalar_dense
    ):
        return None

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shadow = shadows[id(value)]
            assert shadow is not None
            return shadow.value
        if type(value) in (list, tuple):
            return type(value)(map(on_host, value))
        return value

    is_large = _elements(func, args, kwargs, shadows) > MOST_ELEMENTS
    if func._overloadpacket in WRITTEN and not is_large:
        shadows[id(args[0])] = _unshared(args[0])
    named = {name: torch.device("cpu") if name == "device" else on_host(value) for name, value in kwargs.items()}
    try:
        with torch._C._DisableTorchDispatch():
            result = _result(func, on_host(args), named, is_large=is_large)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):  # the host has no such kernel
        return None
    if result is NotImplemented:
        return None
    return result, any(shadow.is_assumed for shadow in shadows.values() if shadow is not None)


def _result(func: Any, args: Any, kwargs: dict[str, Any], *, is_large: bool) -> Any:
    """The result of an operator on host tensors; NotImplemented where they are too many numbers to follow."""
    if not func.is_view:  # a view costs nothing
        if is_large or any(
            is_uniform(each) and each.numel() * FLOAT_WEIGHT > MOST_ELEMENTS for each in tensors_in(args)
        ):
            result = computed_uniformly(func, args, kwargs)
            if result is not None or is_large:
                return NotImplemented if result is None else result
        if func._overloadpacket is aten.histc:  # of whole numbers on a GPU alone (SummaryOps.cu, 2.13)
            return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)


def _elements(func: Any, args: Any, kwargs: dict[str, Any], shadows: dict[int, Shadow | None]) -> int:
    if not shadows:  # a factory: its size is its first argument
        size = args[0] if args and isinstance(args[0], list | tuple | torch.Size) else ()
        count = 1
        for length in size:
            count *= int(length)
        return count * (1 if func._overloadpacket in (aten.arange, aten.randperm) else 2)
    packet, values = func._overloadpacket, [s.value for s in shadows.values() if s is not None]
    count = sum(_weight(value, is_deciding=packet in DECIDING or packet in SAMPLING) for value in values)
    dtypes = [kwargs.get("dtype"), *(value.dtype for value in values)] if packet is aten._to_copy else []
    is_copy = any(dtype is not None and not dtype.is_floating_point for dtype in dtypes)
    spreading = tensors_in(args[1]) if packet is aten.index else values if torch.Tag.pointwise in func.tags else ()
    return max(count // CHEAP_SHARE if is_copy or packet in SAMPLING else count, _spread(spreading))


def _spread(tensors: Iterable[torch.Tensor]) -> int:
    """Numbers of tensors that are spread over one another: a column and a row make a table."""
    lengths = (max(column) for column in zip_longest(*(each.shape[::-1] for each in tensors), fillvalue=1))
    return math.prod(lengths)


def _weight(value: torch.Tensor, *, is_deciding: bool = False) -> int:
    return value.numel() * (FLOAT_WEIGHT if value.is_floating_point() and not is_deciding else 1)


def _unshared(tensor: torch.Tensor) -> Shadow | None:
    """The values of a tensor that is written to: those that are one number in memory become as many as they are."""
    shadow = shadow_of(tensor)
    if shadow is None or not isinstance(tensor, FakeTensor) or not is_uniform(shadow.value):
        return shadow
    with torch._C._DisableTorchDispatch():
        set_shadow(tensor, shadow.value.contiguous(), is_assumed=shadow.is_assumed)
    return shadow_of(tensor)


def know_filled(func: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
    """Note the values of what an operator made of one number; large ones are one number in memory, too."""
    with torch._C._DisableTorchDispatch():
        value = filled(func, args, kwargs, output)
        if value is not None:
            is_followed_in_part = _weight(value) <= MOST_ELEMENTS
            set_shadow(output, value.contiguous() if is_followed_in_part else value, is_assumed=False)


def spread_shadows(outputs: Any, values: Any, *, is_assumed: bool) -> None:
    """Give fake outputs the values that were computed here."""
    for tensor, value in zip(tensors_in((outputs,)), tensors_in((values,)), strict=False):
        if isinstance(tensor, FakeTensor) and value.shape == tensor.shape:
            set_shadow(tensor, value, is_assumed=is_assumed)


def as_if_alone(func: Any, args: Any, outputs: Any) -> bool:
    """After a collective every rank has what this one has; returns whether values of the results are known by that.

    Gathered tensors equal the one that was given. In an exchange of equal parts every rank sends the part that this one
    keeps: counts of rows for the experts of a rank, as if routing were the same everywhere.
    """
    name, tensors = func._schema.name, [list(tensors_in(each)) for each in args[:2]]
    if func.namespace == "c10d":
        if len(tensors) < 2 or not tensors[1]:
            return False  # in place: what is reduced or sent to all stays what it was
        if "gather" not in name or len(tensors[1]) != 1 or shadow_of(tensors[1][0]) is None:
            for tensor in tensors[0]:
                forget(tensor)
            return False
        source, targets = tensors[1][0], tensors[0]
    else:
        source, targets = tensors[0][0], list(tensors_in((outputs,)))
    shadow = shadow_of(source)
    if shadow is None:
        return False
    value = _after_exchange(name, args, shadow.value)
    is_known = False
    for tensor in targets:
        own = _of_all_ranks(value, tensor) if func.namespace == "c10d" else value
        if isinstance(tensor, FakeTensor) and own is not None and tensor.shape == own.shape:
            set_shadow(tensor, own.clone(), is_assumed=shadow.is_assumed)
            is_known = True
        elif func.namespace == "c10d":  # written in place: what was there is there no more
            forget(tensor)
    return is_known


def _of_all_ranks(value: torch.Tensor | None, target: torch.Tensor) -> torch.Tensor | None:
    """`value` as often as it goes into `target`, a tensor into which those of all ranks are gathered one by one."""
    if value is None or not value.numel() or target.numel() == value.numel():
        return value
    with torch._C._DisableTorchDispatch():
        return value.reshape(-1).repeat(target.numel() // value.numel()).reshape(target.shape)


def _after_exchange(name: str, args: Any, value: torch.Tensor) -> torch.Tensor | None:
    """What a functional collective makes of `value` where all ranks have it; None where that is not known."""
    if name.startswith("c10d::") or name.endswith(("::wait_tensor", "::_wrap_tensor_autograd")):
        return value
    with torch._C._DisableTorchDispatch():
        if name.endswith("::all_gather_into_tensor"):
            return value.repeat(int(args[1]), *[1] * (value.dim() - 1))
        if name.endswith("::all_to_all_single") and value.dim() and args[1] == args[2]:
            group = _resolve_process_group(args[3])
            parts = value.chunk(group.size())
            if len(parts) == group.size() and len({part.shape for part in parts}) == 1:
                return parts[group.rank()].repeat(group.size(), *[1] * (value.dim() - 1))
    return None
