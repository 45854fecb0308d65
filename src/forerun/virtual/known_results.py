"""Results of operators whose like was run before in the same trace: layers repeat, and so do shapes.

PyTorch's own cache of fake results asks more of each argument than a trace needs, which is most of a forecast's time.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
ANOTHER = -1
"""Instead of the number of an argument: the storage is that of another result."""


@dataclass(frozen=True, slots=True)
class _Output:
    """How one result is made."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    source: int | None
    """Number of the tensor among the arguments whose storage it looks into; None with one of its own."""


class KnownResults:
    """By operator and arguments what came out, of operators that write nothing and whose shapes no value decides."""

    def __init__(self) -> None:
        self._outputs: dict[Any, tuple[bool, list[_Output | None]] | None] = {}

    def of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """The result of an operator on fake tensors; `run` works it out where it is not known."""
        if not is_decided_by_shapes(func) or torch.is_inference_mode_enabled():
            return run()
        tensors: list[FakeTensor] = []
        of_args, of_kwargs = _key(args, tensors), _key([*kwargs.values()], tensors)
        if not tensors or of_args is None or of_kwargs is None:
            return run()
        key = (func, of_args, tuple(kwargs), of_kwargs)
        try:
            is_new = key not in self._outputs
        except TypeError:  # a size that is not known yet has no hash
            return run()
        if is_new:
            out = run()
            self._outputs[key] = _entry(out, tensors)
            return out
        if (entry := self._outputs[key]) is None:
            return run()
        is_single, results = entry[0], _make(entry[1], tensors)
        return results[0] if is_single else results


@functools.cache
def is_decided_by_shapes(func: Any) -> bool:
    """Whether an operator of PyTorch's own returns tensors, writes into none and asks for no values."""
    schema, tags = func._schema, func.tags
    asks = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    kinds = {str(each.type) for each in schema.returns}
    return func.namespace == "aten" and not asks and not schema.is_mutable and kinds == {"Tensor"}


def _key(values: Sequence[Any], tensors: list[FakeTensor]) -> tuple[Any, ...] | None:
    """What decides a result, and the fake tensors among `values`; None where there is more to it."""
    parts: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if not _is_plain(value):
                return None
            tensors.append(value)
            size = value.untyped_storage().nbytes()  # FSDP empties storages that tensors look into
            parts.append((value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset(), size))
        elif kind in PLAIN:
            parts.append((kind, value))
        elif kind in (list, tuple, torch.Size):
            inner = _key(value, tensors)
            if inner is None:
                return None
            parts.append(inner)
        else:
            return None
    return tuple(parts)


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.constant is None and tensor.layout is torch.strided and not tensor.dtype.is_complex


def _entry(out: Any, tensors: Sequence[FakeTensor]) -> tuple[bool, list[_Output | None]] | None:
    """What is to be made again; None where a result is an argument itself, not all of its storage, or of another's."""
    storages = {each.untyped_storage()._cdata: number for number, each in reversed([*enumerate(tensors)])}
    arguments = {id(each) for each in tensors}
    outputs: list[_Output | None] = []
    for each in out if isinstance(out, tuple | list) else [out]:
        if each is None:
            outputs.append(None)
            continue
        if type(each) is not FakeTensor or not _is_plain(each) or id(each) in arguments:
            return None
        storage, shape, strides = each.untyped_storage(), tuple(each.shape), each.stride()
        source, offset = storages.get(storage._cdata), int(each.storage_offset())
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        size = (last + 1) * each.element_size() if each.numel() else 0
        if source == ANOTHER or (source is None and (offset or storage.nbytes() != size)):
            return None
        storages.setdefault(storage._cdata, ANOTHER)
        outputs.append(_Output(shape, strides, each.dtype, each.fake_device, offset, source))
    return isinstance(out, Tensor), outputs


def _make(outputs: Sequence[_Output | None], tensors: Sequence[FakeTensor]) -> tuple[FakeTensor | None, ...]:
    mode = tensors[0].fake_mode
    places = [
        None if each is None or each.source is None else tensors[each.source].untyped_storage() for each in outputs
    ]
    bare: list[Tensor | None] = []
    with in_kernel_invocation_manager(mode):
        for each, place in zip(outputs, places, strict=True):
            if each is None:
                bare.append(None)
                continue
            empty = torch.empty_strided(each.shape if place is None else (0,), each.strides if place is None else (1,),
                                        dtype=each.dtype, device="meta")  # fmt: skip
            bare.append(empty if place is None else empty.set_(place, each.offset, each.shape, each.strides))
    return tuple(
        None if each is None or tensor is None else FakeTensor(mode, tensor, each.device)
        for each, tensor in zip(outputs, bare, strict=True)
    )
