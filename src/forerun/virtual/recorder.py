"""Records what happens on the virtual device: every operator, every storage born and freed, in order.

A dispatch mode above `FakeTensorMode`: it sees each aten call with fake arguments, lets the fake mode work out the
results, and writes plain records into a `Trace`. A storage's death is seen by a weak reference, so lifetimes are those
of the real program.
"""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from forerun.step.parallel import local
from forerun.step.training_step import StepObserver
from forerun.trace import ALLOCATE, FREE, OP, Call, Category, Named, Op, Phase, Storage, TensorSpec, Trace
from forerun.virtual.backend import DEVICE, current_stream
from forerun.virtual.kernel_memory import temporary_bytes

aten = torch.ops.aten
GATHERS = {aten.embedding, aten.index_select, aten.gather, aten.index}
"""Read only the rows that they return, not the whole table."""
ONLY_IN_PLACE = {aten._fused_sgd_, aten._fused_adagrad_}
"""Change their arguments and return nothing; PyTorch 2.13 has no fake kernel for them, and none is needed."""
INSIDE = ("/torch/", "/forerun/virtual/", "/contextlib.py", "<")
"""Files that are no part of the program being traced."""
WAITS = {aten._local_scalar_dense, aten.nonzero}
"""The host must wait for the device before it can go on."""
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


class Card(Protocol):
    """Memory of a card that is played along with the program; raises `torch.OutOfMemoryError` when it is full."""

    def allocate(self, key: int, size: int) -> None:
        """Give `size` bytes to the storage `key`."""
        ...

    def free(self, key: int) -> None:
        """Take them back."""
        ...


class Recorder(TorchDispatchMode, StepObserver):
    """Writes a `Trace` of everything on torch device type `device` while active."""

    def __init__(self, device: str):
        super().__init__()
        self.device = device
        self.trace = Trace()
        self.current_phase = Phase.PREPARE
        self.current_micro_step = -1
        self.module_path = ""
        self.module_names: dict[int, str] = {}
        self.recomputing = False
        self.is_muted = False
        """What runs is not the program but PyTorch working something out."""
        self._known_answer: bool | None = None
        self.card: Card | None = None
        self.postponed: torch.OutOfMemoryError | None = None
        self.keeps_lines = False
        """Note which line of the program called each operator; slower."""
        self.is_closed = False
        """What dies after the step is not part of it."""
        self.live_bytes = 0
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._emptied: set[int] = set()
        self._calls: dict[Any, int] = {}

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Label what follows with a phase."""
        before = self.current_phase, self.current_micro_step
        self.current_phase, self.current_micro_step = phase, micro_step
        try:
            yield
        finally:
            self.current_phase, self.current_micro_step = before

    @contextlib.contextmanager
    def answering(self, value: bool) -> Iterator[None]:
        """Answer reads of truth values with `value`, without noting them as assumed: the caller knows."""
        before, self._known_answer = self._known_answer, value
        try:
            yield
        finally:
            self._known_answer = before

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Record nothing."""
        before, self.is_muted = self.is_muted, True
        try:
            yield
        finally:
            self.is_muted = before

    def own(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Fix the category of the storages of `tensors`."""
        for tensor in tensors:
            entry = self._storages.get(local(tensor).untyped_storage()._cdata)
            if entry is not None:
                self.trace.storages[entry[0]].owner = category

    def name(self, tensors: dict[str, torch.Tensor]) -> None:
        """Give the storages of `tensors` their names."""
        for name, tensor in tensors.items():
            entry = self._storages.get(local(tensor).untyped_storage()._cdata)
            if entry is not None:
                self.trace.storages[entry[0]].name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one aten call and record it; one on sharded tensors comes back as calls on this rank's parts."""
        kwargs = kwargs or {}
        if any(hasattr(kind, "_local_tensor") for kind in types):
            return NotImplemented
        if func is torch.ops.prim.device.default:
            return func(*args)
        packet = func._overloadpacket
        if packet is aten._local_scalar_dense:
            return self._read(func, args[0])
        out = run_fake(func, packet, args, kwargs)
        if self.is_muted:
            return out
        outputs = [t for t in _flat((out,)) if device_type(t) == self.device]
        if not outputs and not any(device_type(t) == self.device for t in _flat((*args, *kwargs.values()))):
            return out
        born = any([self._track(tensor) for tensor in outputs])
        temporaries = temporary_bytes(packet, args) if self.device == DEVICE else ()
        taken = [self._take(size) for size in temporaries]
        key = (func, _plain(args), tuple((n, _plain(v)) for n, v in kwargs.items()), born)
        self._append(key, lambda: describe(func, args, kwargs, out, born, self.device))
        for index in taken:
            self.trace.events.append((FREE, index))
            if self.card is not None:
                self.card.free(index)
        return out

    def _take(self, size: int) -> int:
        """Note memory that a kernel takes for itself; returns the index of its storage."""
        return self._born(size, Category.TEMPORARY)

    def _track(self, tensor: torch.Tensor) -> bool:
        """Note a new storage; returns whether it was new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return False
        index = self._born(storage.nbytes())
        self.live_bytes += storage.nbytes()
        self._storages[key] = (index, weakref.ref(storage, lambda _, k=key: self._freed(k)))
        return True

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage was emptied, or filled again, in place: FSDP does that with gathered weights."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            return
        index, reference = self._storages[key]
        owner = self.trace.storages[index].owner
        if key not in self._emptied:
            self._end(index)
        self._emptied.discard(key)
        if size:
            self._storages[key] = (self._born(size, owner), reference)
            self.live_bytes += size
        else:
            self._emptied.add(key)

    def _born(self, size: int, owner: Category | None = None) -> int:
        index = len(self.trace.storages)
        self._allocate(index, size)
        stream = current_stream() if self.device == DEVICE else 0
        ends = self.current_phase if owner is Category.TEMPORARY else None
        self.trace.storages.append(Storage(size, self.current_phase, owner, ends, stream=stream))
        self.trace.events.append((ALLOCATE, index))
        return index

    def _allocate(self, index: int, size: int) -> None:
        if self.card is None:
            return
        try:
            self.card.allocate(index, size)
        except torch.OutOfMemoryError as error:
            if self.current_phase is not Phase.BACKWARD:
                raise
            self.postponed = self.postponed or error

    def raise_postponed(self) -> None:
        """Raise what went wrong in a backward pass: PyTorch 2.13 aborts when a device's thread raises Python errors."""
        error, self.postponed = self.postponed, None
        if error is not None:
            raise error

    def _freed(self, key: int) -> None:
        index, _ = self._storages.pop(key)
        if key in self._emptied:
            self._emptied.discard(key)
        elif not self.is_closed:
            self._end(index)

    def _end(self, index: int) -> None:
        if self.card is not None:
            self.card.free(index)
        record = self.trace.storages[index]
        record.freed_in = self.current_phase
        self.live_bytes -= record.bytes
        self.trace.events.append((FREE, index))

    def _read(self, func: Any, tensor: torch.Tensor) -> bool | int | float:
        """The host reads a value: a constant is known; else nobody can know it, so answer zero, and say so."""
        try:
            return func(tensor)
        except DataDependentOutputException:
            pass
        if self._known_answer is None:
            self.trace.assumed_values.append(f"{self.module_path or self.current_phase}: {tensor.dtype} read as 0")
        spec = _spec(tensor)
        self._append((func, spec), lambda: Call(str(func), (spec,), (), (spec,), (), 0, spec.bytes, 0, syncs=True))
        if tensor.dtype == torch.bool:
            return bool(self._known_answer)
        return 0.0 if tensor.is_floating_point() else 0

    def _append(self, key: Any, describe: Callable[[], Call]) -> None:
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = len(self.trace.calls)
            self.trace.calls.append(describe())
        if self.keeps_lines:
            self.trace.lines[len(self.trace.ops)] = calling_line()
        self.trace.events.append((OP, len(self.trace.ops)))
        self.trace.ops.append(Op(call, self.current_phase, self.current_micro_step, self.module_path, self.recomputing))


def calling_line() -> str:
    """File and line of the nearest caller outside PyTorch and the virtual GPU, such as `modeling_llama.py:214`."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in INSIDE):
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def run_fake(func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
    """The result of an aten call on fake tensors, where PyTorch's own fake kernel is missing or too strict too."""
    if packet in ONLY_IN_PLACE:
        return None
    return grouped_product(func, args, kwargs) if packet is aten._grouped_mm else func(*args, **kwargs)


def grouped_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Grouped matrix product in the dtype of its inputs.

    CUDA takes fp32 and fp16 by a fallback (`aten/src/ATen/native/cuda/GroupedBlas.cpp`, PyTorch 2.13), but the fake
    kernel only bf16: work out the shape in bf16, which is not recorded.
    """
    dtype = args[0].dtype
    narrow = [a.to(torch.bfloat16) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    return func(*narrow, **kwargs).to(dtype)


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


def describe(func: Any, args: Any, kwargs: Any, out: Any, made_storage: bool, device: str) -> Call:
    """The plain description of one aten call; bytes and FLOP are of tensors on `device`."""
    packet = func._overloadpacket
    inputs = tuple(_spec(t) for t in _flat((*args, *kwargs.values())) if device_type(t) == device)
    outputs = tuple(_spec(t) for t in _flat((out,)) if device_type(t) == device)
    written = _written(func, args)
    is_view = packet in NO_KERNEL or (not made_storage and not written)
    bytes_written = sum(_bytes(t) for t in written) or sum(s.bytes for s in outputs)
    bytes_read = sum(s.bytes for s in inputs)
    if packet in GATHERS:
        bytes_read = bytes_written + sum(s.bytes for s in inputs[1:])
    return Call(
        name=str(func),
        arguments=_plain(args),
        keywords=tuple((name, _plain(value)) for name, value in kwargs.items()),
        inputs=inputs,
        outputs=outputs,
        flops=_flops(packet, args, kwargs, out),
        bytes_read=0 if is_view else bytes_read,
        bytes_written=0 if is_view else bytes_written,
        is_view=is_view,
        syncs=packet in WAITS,
    )


def _flops(packet: Any, args: Any, kwargs: Any, out: Any) -> int:
    if packet is aten._grouped_mm:
        return grouped_flops(args[0], args[1])
    return int(flop_registry[packet](*args, **kwargs, out_val=out)) if packet in flop_registry else 0


def _written(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Arguments that the op changes in place."""
    changed = (a for a, p in zip(args, func._schema.arguments, strict=False) if p.alias_info and p.alias_info.is_write)
    return list(_flat(changed))


def _plain(value: Any) -> Any:
    """An argument as hashable plain data."""
    if isinstance(value, torch.Tensor):
        return _spec(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return Named(type(value).__name__, str(value).removeprefix("torch."))
    if isinstance(value, torch.SymInt):
        return int(value)
    return value


def _spec(tensor: torch.Tensor) -> TensorSpec:
    dtype = tensor.dtype
    shape = tuple(tensor.shape)
    return TensorSpec(shape, tuple(tensor.stride()), _DTYPES[dtype], tensor.numel() * dtype.itemsize)


_DTYPES = {value: name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_DTYPES |= {dtype: str(dtype).removeprefix("torch.") for dtype in _DTYPES}


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flat(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
