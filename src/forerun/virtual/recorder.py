"""Records what happens on the virtual device: every operator, every storage born and freed, in order.

A dispatch mode above `FakeTensorMode`: it sees each aten call with fake arguments, lets the fake mode work out the
results, and writes plain records into a `Trace`. A storage's death is seen by a weak reference, so lifetimes are those
of the real program.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.step.training_step import StepObserver
from forerun.trace import ALLOCATE, FREE, OP, RANDOM_ELEMENTS, Call, Category, Issuer, Op, Phase, Storage, Trace
from forerun.virtual import gradient_sums, kernel_memory
from forerun.virtual.backend import DEVICE, current_stream
from forerun.virtual.card import Card
from forerun.virtual.describe import (
    bytes_of,
    card_of,
    cards_of,
    describe,
    device_of_fake,
    device_type,
    flat,
    is_wrapper,
    issuer_now,
    plain,
    spec_of,
    stored,
)
from forerun.virtual.fake_results import run_fake
from forerun.virtual.known_results import KnownResults
from forerun.virtual.program_lines import calling_line

aten = torch.ops.aten


class Recorder(TorchDispatchMode, StepObserver):
    """Writes a `Trace` of everything on torch device type `device` while active."""

    def __init__(self, device: str):
        super().__init__()
        self.device = device
        self.trace = Trace()
        self.current_phase = Phase.PREPARE
        self.current_micro_step, self._before_pass = -1, 0  # storages that the last backward pass met
        self.module_path = ""
        self.module_names: dict[int, str] = {}
        self.recomputing = False
        self.issuer: str = Issuer.EAGER
        self.is_muted = False  # what runs is not the program but PyTorch working something out
        self._fixed_answer: bool | None = None
        self.card: Card | None = None
        self.on_write: Callable[[list[torch.Tensor]], None] | None = None
        """Is told of tensors of the device that an operator writes into."""
        self.postponed: torch.OutOfMemoryError | None = None
        self.keeps_lines = False
        """Note which line of the program called each operator; slower."""
        self.followed: list[weakref.ref[torch.Tensor]] = []
        """Parameters whose gradients are the program's."""
        self.is_closed = False  # the step is over: storages that die now are not recorded
        self.live_bytes, self._results = 0, KnownResults()
        self._storages: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._emptied: set[int] = set()
        self._calls: dict[Any, int] = {}

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Label what follows with a phase."""
        before = self.current_phase, self.current_micro_step
        self.current_phase, self.current_micro_step = phase, micro_step
        self._before_pass = len(self.trace.storages) if phase is Phase.BACKWARD else self._before_pass
        try:
            yield
        finally:
            self.current_phase, self.current_micro_step = before

    @contextlib.contextmanager
    def answering(self, value: bool) -> Iterator[None]:
        """Answer reads of truth values with `value`, without noting them as assumed: the caller knows."""
        before, self._fixed_answer = self._fixed_answer, value
        try:
            yield
        finally:
            self._fixed_answer = before

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Record nothing."""
        before, self.is_muted = self.is_muted, True
        try:
            yield
        finally:
            self.is_muted = before

    @contextlib.contextmanager
    def issued_by(self, issuer: str) -> Iterator[None]:
        """Who launches the kernels that follow, one of `Issuer`."""
        before, self.issuer = self.issuer, issuer
        try:
            yield
        finally:
            self.issuer = before

    @contextlib.contextmanager
    def in_module(self, path: str) -> Iterator[None]:
        """Label what follows with a module path; an empty one keeps the present label."""
        before, self.module_path = self.module_path, path or self.module_path
        try:
            yield
        finally:
            self.module_path = before

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo may capture graphs while this mode is active: it sees them when they are played."""
        return True

    def fused(
        self,
        name: str,
        reads: list[tuple[Any, int | None]],
        outputs: list[torch.Tensor],
        dying: list[torch.Tensor],
        random_elements: int = 0,
    ) -> None:
        """Record one fused kernel: bytes read (`None` for all of a value), values stored, inputs whose memory ends.

        `random_elements` are random numbers that it draws.
        """
        inputs = [(value, rows) for value, rows in reads if isinstance(value, torch.Tensor)]
        free = [tensor.untyped_storage() for tensor in dying]
        for output in outputs:
            storage = output.untyped_storage()
            place = next((s for s in free if s.nbytes() == storage.nbytes() and s._cdata in self._storages), None)
            if place is not None and place._cdata != storage._cdata:  # the result is stored where this input was
                free.remove(place)
                self._record_free(self._storages.pop(place._cdata)[0])
            self._track(output)
        bytes_read = sum(min(bytes_of(t), t.untyped_storage().nbytes()) if rows is None else rows for t, rows in inputs)
        specs = tuple(spec_of(t) for t, _ in inputs), tuple(spec_of(t) for t in outputs)
        bytes_written = sum(spec.bytes for spec in specs[1])
        keywords = ((RANDOM_ELEMENTS, random_elements),) if random_elements else ()
        call = Call(f"fused.{name}", (), keywords, *specs, 0, bytes_read, bytes_written, issuer=self.issuer)
        self.append((name, specs, bytes_read), lambda: call)

    def own(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Fix the category of the storages of `tensors`."""
        for tensor in tensors:
            entry = self._storages.get(stored(tensor).untyped_storage()._cdata)
            if entry is not None:
                self.trace.storages[entry[0]].owner = category

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """From now on the gradients of `parameters` count as such."""
        self.followed += [weakref.ref(parameter) for parameter in parameters]

    def own_gradients(self) -> None:
        """Find the gradients of all parameters that are followed."""
        parameters = [p for p in (each() for each in self.followed) if p is not None and (p.is_leaf or p.retains_grad)]
        self.own([p.grad for p in parameters if p.grad is not None], Category.GRADIENT)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made while this recorder was active."""
        return stored(tensor).untyped_storage()._cdata in self._storages

    def name(self, tensors: dict[str, torch.Tensor]) -> None:
        """Give the storages of `tensors` their names."""
        for name, tensor in tensors.items():
            entry = self._storages.get(stored(tensor).untyped_storage()._cdata)
            if entry is not None:
                self.trace.storages[entry[0]].name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one aten call and record it; one on sharded tensors comes back as calls on this rank's parts."""
        kwargs = kwargs or {}
        if any(map(is_wrapper, types)):  # its own dispatch runs next and calls back with its parts
            return NotImplemented
        if func is torch.ops.prim.device.default:
            return device_of_fake(args[0]) or func(*args)
        func = gradient_sums.in_place(func, args)
        if func._overloadpacket is aten._local_scalar_dense:
            return self._read(func, args[0])
        out = self._results.of(func, args, kwargs, lambda: run_fake(func, args, kwargs, self.trace.assumed_values))
        for tensor in flat((out,)):
            # torch/_subclasses/fake_tensor.py (2.13) computes constants on their device: BatchNorm's counter would fail
            if isinstance(tensor, FakeTensor) and tensor.constant is not None and tensor.constant.device.type == DEVICE:
                tensor.constant = None
        if not self.is_muted:
            self.record(func, args, kwargs, out)
        return out

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Write down one aten call with its results."""
        outputs = [t for t in flat((out,)) if device_type(t) == self.device]
        if not outputs and not any(device_type(t) == self.device for t in flat((*args, *kwargs.values()))):
            return
        creates_storage = any([self._track(tensor) for tensor in outputs])  # a list, so that every one is tracked
        of_kernel = kernel_memory.temporaries if self.device == DEVICE else kernel_memory.host_temporaries
        temporaries = of_kernel(func._overloadpacket, args)
        if self.on_write is not None and func._schema.is_mutable:
            self.on_write([*flat(a for a, p in zip(args, func._schema.arguments, strict=False) if p.is_write)])
        cards = cards_of(outputs, args, kwargs)
        indices = [self._new_temporary(*each, cards[0] if cards else 0) for each in temporaries]
        issuer = issuer_now(self.issuer, self.current_phase)
        where = (issuer, cards, current_stream())
        key = (func, plain(args), tuple((n, plain(v)) for n, v in kwargs.items()), creates_storage, where)
        self.append(key, lambda: describe(func, args, kwargs, out, creates_storage, self.device, issuer))
        for index in indices:
            self.trace.events.append((FREE, index))
            if self.card is not None:
                self.card.free(index)

    def _new_temporary(self, size: int, reduces: int, card: int) -> int:
        """Note memory that a kernel takes for itself; returns the index of its storage."""
        return self._new_storage(size, Category.TEMPORARY, card, reduces)

    def _track(self, tensor: torch.Tensor) -> bool:
        """Note a new storage; returns whether it was new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return False
        index = self._new_storage(storage.nbytes(), card=card_of(tensor))
        self.live_bytes += storage.nbytes()
        self._storages[key] = (index, weakref.ref(storage, lambda _, k=key: self._on_storage_freed(k)))
        return True

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage was emptied or filled again in place, as FSDP does with gathered weights."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            return
        index, reference = self._storages[key]
        owner, card = self.trace.storages[index].owner, self.trace.storages[index].card
        if key not in self._emptied:
            self._record_free(index)
        self._emptied.discard(key)
        if size:
            self._storages[key] = (self._new_storage(size, owner, card), reference)
            self.live_bytes += size
        else:
            self._emptied.add(key)

    def _new_storage(self, size: int, owner: Category | None = None, card: int = 0, reduces: int = 0) -> int:
        index = len(self.trace.storages)
        stream = current_stream() if self.device == DEVICE else 0
        self._allocate(index, size, stream, card, reduces)
        size = size if self.postponed is None else 0  # else the card would have stopped the program here
        ends = self.current_phase if owner is Category.TEMPORARY else None
        storage = Storage(size, self.current_phase, owner, ends, stream=stream, card=card, reduces=reduces)
        self.trace.storages.append(storage)
        self.trace.events.append((ALLOCATE, index))
        return index

    def _allocate(self, index: int, size: int, stream: int, card: int, reduces: int) -> None:
        if self.card is None:
            return
        try:
            self.card.allocate(index, size, stream, card, reduces)
        except torch.OutOfMemoryError as error:
            if self.postponed is None:
                self.trace.failures.append((len(self.trace.events), size))
            if self.current_phase is not Phase.BACKWARD:
                raise
            self.postponed = self.postponed or error

    def raise_postponed(self) -> None:
        """Raise what went wrong in a backward pass: PyTorch 2.13 aborts when a device's thread raises Python errors."""
        errors, self.postponed = [self.postponed], None  # its name would keep this frame's tensors alive in a cycle
        if errors[0] is not None:
            raise errors.pop()  # type: ignore[misc]

    def _on_storage_freed(self, key: int) -> None:
        index, _ = self._storages.pop(key)
        if key in self._emptied:
            self._emptied.discard(key)
        elif not self.is_closed:
            self._record_free(index)

    def storage_of(self, tensor: torch.Tensor) -> int | None:
        """Index in the trace of the storage of `tensor`; None for one that is not of this device."""
        entry = self._storages.get(stored(tensor).untyped_storage()._cdata)
        return None if entry is None else entry[0]

    def alive(self) -> set[int]:
        """Indices in the trace of all storages that tensors have now."""
        return {index for index, _ in self._storages.values()}

    def repeat(
        self,
        events: list[tuple[str, int]],
        places: dict[int, int] | None = None,
        tensors: Mapping[int, torch.Tensor | None] | None = None,
        calls: Mapping[int, int] | None = None,
        sizes: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Record events of the trace once more; returns the new storage of each that they allocate.

        `places` are new storages from before for old ones, `tensors` those whose storage ends with that of an old one.
        The end of any other storage from before is not recorded: it is somebody else's. `calls` and `sizes` are other
        calls of old operators, and other bytes of old storages.
        """
        places, tensors, calls, sizes = {} if places is None else places, tensors or {}, calls or {}, sizes or {}
        for kind, index in events:
            if kind == OP:
                if self.keeps_lines:
                    self.trace.lines[len(self.trace.ops)] = self.trace.lines.get(index, "")
                self.trace.events.append((OP, len(self.trace.ops)))
                op, phase = self.trace.ops[index], self.current_phase
                self.trace.ops.append(Op(calls.get(index, op.call), phase, op.micro_step, op.module, op.recomputed))
            elif kind == ALLOCATE:
                storage = self.trace.storages[index]
                size = sizes.get(index, storage.bytes)
                places[index] = self._new_storage(size, storage.owner, storage.card, storage.reduces)
                self.live_bytes += size
            elif index in places:
                self._record_free(places[index])
            else:
                self._end_early(tensors.get(index))
        return places

    def replay(self, operators: Iterable[int], phase: Phase | None) -> None:
        """Record operators of the trace again, in `phase` or their own, as a CUDA graph issues them: without a host."""
        for index in operators:
            before = self.trace.ops[index]
            key = ("graph", before.call)
            if key not in self._calls:
                self._calls[key] = len(self.trace.calls)
                self.trace.calls.append(replace(self.trace.calls[before.call], issuer=Issuer.GRAPH))
            if self.keeps_lines:
                self.trace.lines[len(self.trace.ops)] = self.trace.lines.get(index, "")
            self.trace.events.append((OP, len(self.trace.ops)))
            self.trace.ops.append(replace(before, call=self._calls[key], phase=phase or before.phase))

    def _end_early(self, tensor: torch.Tensor | None) -> None:
        """Record the end of a tensor's storage although something still refers to it."""
        key = None if tensor is None else tensor.untyped_storage()._cdata
        if key is not None and key in self._storages and key not in self._emptied:
            self._record_free(self._storages[key][0])
            self._emptied.add(key)

    def adopt(self, index: int, tensor: torch.Tensor) -> None:
        """Let the storage `index` of the trace, which `repeat` made, be that of a tensor nobody has recorded."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._storages[key] = (index, weakref.ref(storage, lambda _, k=key: self._on_storage_freed(k)))

    def release(self, index: int) -> None:
        """Record the end of a storage that no tensor has."""
        self._record_free(index)

    def _record_free(self, index: int) -> None:
        if self.card is not None:
            self.card.free(index)
        record = self.trace.storages[index]
        is_later = index < self._before_pass and record.phase is self.current_phase  # a next step's forward pass
        record.freed_in = None if is_later else self.current_phase
        self.live_bytes -= record.bytes
        self.trace.events.append((FREE, index))

    def _read(self, func: Any, tensor: torch.Tensor) -> bool | int | float:
        """The host reads a value: a constant is known; else nobody can know it, so answer zero, and say so."""
        try:
            return func(tensor)
        except DataDependentOutputException:  # torch/_subclasses/fake_impls.py:1219 (2.13), local_scalar_dense
            pass
        if self._fixed_answer is None:
            self.trace.assumed_values.append(f"{self.module_path or self.current_phase}: {tensor.dtype} read as 0")
        if not self.is_muted:
            spec = spec_of(tensor)
            self.append((func, spec), lambda: Call(str(func), (spec,), (), (spec,), (), 0, spec.bytes, 0, syncs=True))
        zero = 0.0 if tensor.is_floating_point() else 0
        return bool(self._fixed_answer) if tensor.dtype == torch.bool else zero

    def append(self, key: Any, describe: Callable[[], Call]) -> None:
        """Record one operator; calls of one `key` have one description."""
        call = self.number_of(key, describe)
        if self.keeps_lines:
            self.trace.lines[len(self.trace.ops)] = calling_line()
        self.trace.events.append((OP, len(self.trace.ops)))
        self.trace.ops.append(Op(call, self.current_phase, self.current_micro_step, self.module_path, self.recomputing))

    def number_of(self, key: Any, describe: Callable[[], Call]) -> int:
        """Number of a call in the trace, which is described once for each `key`."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = len(self.trace.calls)
            self.trace.calls.append(describe())
        return call
