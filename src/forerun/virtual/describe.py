"""An aten call as plain data: shapes, FLOP, bytes read and written, whether it launches a kernel."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.utils.flop_counter import flop_registry

from forerun.step.parallel import local
from forerun.trace import (
    BESIDE_HOST,
    BYTES_READ,
    BYTES_WRITTEN,
    CARD,
    CARD_BYTES,
    GROUP_SIZE,
    HOST_BYTES,
    MACHINES,
    PEER,
    RANKS,
    STREAM,
    Call,
    Issuer,
    Named,
    Phase,
    TensorSpec,
)
from forerun.virtual.backend import DEVICE, VirtualBackend, current_stream

aten = torch.ops.aten
GATHERS = {aten.embedding, aten.index_select, aten.gather, aten.index}
"""Operators that read only the rows that they return, not the whole table."""
SCATTERS = {aten.index_add_, aten.index_copy_}
"""Operators that read and write only the rows of a table that they are handed."""
SPARSE_PARTS = "_forerun_parts"
"""Attribute of a sparse tensor of the device: positions (D, N) and values (N, …)."""
COPIES = {aten.copy_, aten._to_copy}
"""Operators that may carry data between host and device."""
WAITS = {aten._local_scalar_dense, aten.nonzero}
"""Operators after which the host must wait for the device before it can go on."""
READS_FLAG = "forerun::read_flag"
"""By name, another: `step/quantization.py`."""
NO_KERNEL = {
    aten.detach,
    aten.lift_fresh,
    aten.alias,
    aten._unsafe_view,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
}
NO_KERNEL |= {aten.new_empty, aten.new_empty_strided, aten.sym_size, aten.sym_stride, aten.is_same_size}


AFTER_COLLECTIVES = {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}
"""By name: they are there once torch.distributed is imported, the second from PyTorch 2.13 on."""
REAL_PRODUCTS = 4
"""In one product of complex numbers."""
PRODUCTS_FORWARD, PRODUCTS_BACKWARD = 2, 5
"""Matrix products of attention; the backward pass computes the weights anew."""


def grouped_flops(left: torch.Tensor, right: torch.Tensor) -> int:
    """FLOP of a grouped product: every row of the shared dimension meets one group, so groups do not multiply it."""
    if left.ndim == right.ndim == 2:  # the groups split the inner dimension: (M, K) x (K, N) for each
        return 2 * left.shape[0] * left.shape[1] * right.shape[1]
    if left.ndim == 2:  # the groups split the rows of the left side
        return 2 * left.shape[0] * left.shape[1] * right.shape[-1]
    return 2 * left.shape[-2] * left.shape[-1] * right.shape[-1]


def device_type(tensor: torch.Tensor) -> str:
    """The device type of a tensor; asking a fake tensor itself would go through the dispatcher again."""
    return tensor.fake_device.type if isinstance(tensor, FakeTensor) else tensor.device.type


def device_of_fake(tensor: torch.Tensor) -> torch.device | None:
    """The device of a fake tensor as `prim::device` says it, without another dispatch; None where PyTorch is to say it.

    Two thirds of the operators of a program ask for nothing else. Inside a kernel of shapes it is `meta`.
    """
    if isinstance(tensor, FakeTensor) and not tensor.fake_mode.in_kernel_invocation:
        return tensor.fake_device
    return None


def card_of(tensor: torch.Tensor) -> int:
    """The number of the card that a tensor of the device is on, where the process drives several."""
    return 0 if VirtualBackend.cards == 1 else _number(tensor) or 0


def cards_of(outputs: Iterable[Any], args: Any, kwargs: Any) -> tuple[int, ...]:
    """The cards of an operator where the process drives several: that of its result, then others that it reads."""
    if VirtualBackend.cards == 1:
        return ()
    numbers = (_number(tensor) for tensor in flat((*outputs, *args, *kwargs.values())))
    return tuple(dict.fromkeys(number for number in numbers if number is not None))


def _number(tensor: torch.Tensor) -> int | None:
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else None
    return device.index if device is not None and device.type == DEVICE else None


def _copied_bytes(args: Any, card: int) -> int:
    """Bytes of the tensors that an operator reads from another card."""
    return sum(bytes_of(tensor) for tensor in flat(args) if _number(tensor) == card)


def describe(
    func: Any, args: Any, kwargs: Any, out: Any, creates_storage: bool, device: str, issuer: str = Issuer.EAGER
) -> Call:
    """The plain description of one aten call; bytes and FLOP are of tensors on `device`."""
    packet = func._overloadpacket
    inputs = tuple(spec_of(t) for t in flat((*args, *kwargs.values())) if device_type(t) == device)
    outputs = tuple(spec_of(t) for t in flat((out,)) if device_type(t) == device)
    mutated = _mutated_arguments(func, args, kwargs)
    after_collective = packet._qualified_op_name in AFTER_COLLECTIVES
    is_view = packet in NO_KERNEL or after_collective or (not creates_storage and not mutated)
    keywords = tuple((name, plain(value)) for name, value in kwargs.items())
    if func.namespace in ("c10d", "_c10d_functional") and not after_collective:
        is_view = False  # collectives write in place without saying so
        ranks, machines = _group(args)
        keywords += ((GROUP_SIZE, len(ranks) or 1), (MACHINES, machines), (RANKS, ranks))
        if packet._qualified_op_name in ("c10d::send", "c10d::recv_"):
            keywords += ((PEER, ranks[args[2]]),)
        if current_stream():
            keywords += ((STREAM, current_stream()),)
    carried = _carried_bytes(packet, args, out, device)
    if carried or packet._qualified_op_name.replace("::", ".").startswith(BESIDE_HOST):
        is_view = False  # what it makes is not on the device
    if carried:
        keywords += ((HOST_BYTES, carried),)
        keywords += ((STREAM, current_stream()),) if current_stream() else ()
    cards = cards_of((out,), args, kwargs)
    if cards and cards[0]:
        keywords += ((CARD, cards[0]),)
    if len(cards) > 1:
        keywords += ((CARD_BYTES, (cards[1], _copied_bytes(args, cards[1]))),)
    bytes_written = sum(bytes_of(t) for t in mutated) or sum(s.bytes for s in outputs)
    bytes_read = sum(s.bytes for s in inputs)
    if packet in GATHERS:
        bytes_read = bytes_written + sum(s.bytes for s in inputs[1:])
    if packet in SCATTERS and len(inputs) > 1:
        bytes_written = inputs[-1].bytes
        bytes_read = bytes_written + sum(s.bytes for s in inputs[1:])
    bytes_read, bytes_written = kwargs.get(BYTES_READ, bytes_read), kwargs.get(BYTES_WRITTEN, bytes_written)
    return Call(
        name=str(func),
        arguments=_named(plain(args)),
        keywords=keywords,
        inputs=inputs,
        outputs=outputs,
        flops=_flops(packet, args, kwargs, out),
        bytes_read=0 if is_view else bytes_read,
        bytes_written=0 if is_view else bytes_written,
        is_view=is_view,
        syncs=packet in WAITS
        or packet._qualified_op_name == READS_FLAG
        or _is_awaited_copy(packet, args, kwargs, device),
        issuer=issuer,
    )


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The dense tensor of this rank whose storage `tensor` fills: a part of a sharded one, values of a sparse one."""
    part = local(tensor)
    parts = getattr(part, SPARSE_PARTS, None)
    if parts is not None:
        return parts[1]
    return part._values() if part.is_sparse else part


def _carried_bytes(packet: Any, args: Any, out: Any, device: str) -> int:
    """Bytes that a copy carries between the host and a GPU."""
    if packet not in COPIES or device == "cpu":
        return 0
    target, source = (args[0], args[1]) if packet is aten.copy_ else (out, args[0])
    return bytes_of(source) if (device_type(target) == device) != (device_type(source) == device) else 0


def _is_awaited_copy(packet: Any, args: Any, kwargs: Any, device: str) -> bool:
    """Whether the host waits until a copy to or from it has ended (aten/src/ATen/native/cuda/Copy.cu, 2.13)."""
    if packet is aten._to_copy:
        target = kwargs.get("device")
        crosses = target is not None and (torch.device(target).type == device) != (device_type(args[0]) == device)
        return crosses and not kwargs.get("non_blocking")
    if packet is aten.copy_:
        crosses = (device_type(args[0]) == device) != (device_type(args[1]) == device)
        return crosses and not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
    return False


def issuer_now(issuer: str, phase: Phase) -> str:
    """Who launches now; what a closure computes inside an optimizer's step leaves a graph, unlike its update."""
    is_update = issuer == Issuer.EAGER and phase is Phase.OPTIMIZER and not torch.is_grad_enabled()
    return Issuer.UPDATE if is_update else issuer


def _flops(packet: Any, args: Any, kwargs: Any, out: Any) -> int:
    if packet is aten._grouped_mm:
        return grouped_flops(args[0], args[1])
    # torch/utils/flop_counter.py:325 (2.13) takes every document of a fake batch as long as the longest: too many FLOP
    if packet is aten._flash_attention_forward and args[3] is not None:
        return PRODUCTS_FORWARD * 2 * _pairs_of_tokens(args[0], args[3], args[5])
    if packet is aten._flash_attention_backward and args[6] is not None:
        return PRODUCTS_BACKWARD * 2 * _pairs_of_tokens(args[1], args[6], args[8])
    if packet is aten._efficient_attention_forward and args[4] is not None:
        return PRODUCTS_FORWARD * 2 * _pairs_of_tokens(args[0][0], args[4], args[6])
    if packet is aten._efficient_attention_backward and args[6] is not None:
        return PRODUCTS_BACKWARD * 2 * _pairs_of_tokens(args[1][0], args[6], args[8])
    if packet is aten.convolution_backward:
        # torch/utils/flop_counter.py (2.13) counts the gradient of a grouped weight as if there were one group
        gradient, image, weight, _, stride, padding, dilation, is_transposed, _, _, mask = args
        forward = flop_registry[aten.convolution]
        return sum(mask[:2]) * int(
            forward(image, weight, None, stride, padding, dilation, is_transposed, out_val=gradient)
        )
    if packet.__name__.startswith("_scaled_dot_product_") and packet in flop_registry:
        return _attention_flops(args, is_backward=packet.__name__.endswith("_backward"))
    if packet not in flop_registry:  # `addmm_` is not, `addmm` is
        packet = getattr(aten, packet.__name__.removesuffix("_"), packet) if packet.__name__.endswith("_") else packet
    if packet not in flop_registry:
        return 0
    # torch/utils/flop_counter.py (2.13) takes the dtype of `addmm.dtype` and `mm.dtype` for the shape of the result
    shapes = [value for value in args if not isinstance(value, torch.dtype)]
    count = int(flop_registry[packet](*shapes, **kwargs, out_val=out))
    return count * (REAL_PRODUCTS if isinstance(out, torch.Tensor) and out.is_complex() else 1)


def _attention_flops(args: Any, *, is_backward: bool) -> int:
    """FLOP of attention on (B, H, S, D); keys may have fewer heads, which the formulas of PyTorch 2.11 refuse."""
    query, key, value = args[1:4] if is_backward else args[:3]
    batch, heads, rows, size = query.shape
    products = 3 * size + 2 * value.shape[3] if is_backward else size + value.shape[3]
    return 2 * batch * heads * rows * key.shape[2] * products


def _pairs_of_tokens(query: torch.Tensor, offsets: torch.Tensor, longest: int) -> int:
    """Multiply-adds of one product of attention within documents, of `query` (T, H, D).

    Only how many documents there are is known here, and the `longest`: lengths are taken as geometric, whose mean
    square is twice the square of their mean, and is never above mean times longest.
    """
    tokens, heads, size = query.shape
    mean = tokens / (offsets.numel() - 1)
    return round(tokens * heads * size * min(2 * mean, longest))


def _mutated_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Arguments that the op changes in place, `out=` among them."""
    places = [p for p in enumerate(func._schema.arguments) if p[1].alias_info and p[1].alias_info.is_write]
    changed = [args[place] if place < len(args) else kwargs.get(p.name) for place, p in places]
    return list(flat(changed))


def _group(args: tuple[Any, ...]) -> tuple[tuple[int, ...], int]:
    """Ranks and number of machines of the process group among a collective's arguments: an object, or its name."""
    objects = [
        value for value in args if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())
    ]
    if not objects and not isinstance(args[-1], str):
        return (), 1
    group = ProcessGroup.unbox(objects[0]) if objects else _resolve_process_group(args[-1])  # type: ignore[arg-type]
    stated = VirtualBackend.ranks_per_machine or int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    per_machine = stated or dist.get_world_size()
    ranks = _shared(tuple(dist.get_process_group_ranks(group)))
    return ranks, len({rank // per_machine for rank in ranks})


@cache
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """One object for equal groups: hundreds of calls refer to thousands of ranks."""
    return ranks


@cache
def is_wrapper(kind: type) -> bool:
    """Whether tensors of this class hold others and turn an operator into operators on these: DTensor, torchao's.

    The result of a collective that is under way (AsyncCollectiveTensor) is none: it is waited for at once.
    """
    flattens = hasattr(kind, "__tensor_flatten__") and kind.__name__ != "AsyncCollectiveTensor"
    return hasattr(kind, "_local_tensor") or flattens


def plain(value: Any) -> Any:
    """An argument as hashable plain data."""
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return Named(type(value).__name__, str(value).removeprefix("torch."))
    if isinstance(value, torch.SymInt):
        return int(value)
    return value


def _named(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same without objects of C++, which cannot be compared: groups, whose ranks are noted, and kinds of sums."""
    objects = torch.ScriptObject
    return tuple(Named("object", type(value).__name__) if isinstance(value, objects) else value for value in values)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, stride (elements), dtype and bytes of a tensor, as plain data."""
    dtype = tensor.dtype
    shape = tuple(tensor.shape)
    return TensorSpec(shape, tuple(tensor.stride()), _DTYPES[dtype], tensor.numel() * dtype.itemsize)


_DTYPES = {value: name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_DTYPES |= {dtype: str(dtype).removeprefix("torch.") for dtype in _DTYPES}


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; its storage may hold more."""
    return tensor.numel() * tensor.element_size()


def flat(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among nested arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from flat(value)
