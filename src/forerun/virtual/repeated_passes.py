"""Micro-batches of a pipeline's stage do the same again and again: two are run, the others played from the record.

The first pass of a step gathers weights and makes gradients; the second is what all later ones do. Its operators and
storages are recorded once more in place of theirs, and the tensors that the schedule holds (what a stage sends on, and
the gradient of what it was given) are made anew. What the schedule does between passes runs as ever.

Not covered: backward passes in halves (zero-bubble), and passes that keep memory which neither of them gives back.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forerun.trace import ALLOCATE, FREE, OP, Issuer, Phase
from forerun.virtual.describe import stored
from forerun.virtual.recorder import Recorder

REPEATS_FROM = 1
"""Number of the micro-batch whose passes stand for those of all later ones."""
FIRST = REPEATS_FROM + 1
"""Micro-batches that are run."""
Events = list[tuple[str, int]]
_Sharding = tuple[Any, Any, Any, Any]
"""Mesh, placements, and the whole tensor's shape and stride."""


class NotRepeatable(Exception):
    """A pass does what cannot be played. Caught where stages are traced, by `is_refused`; never shown to users."""


@dataclass(frozen=True)
class _Result:
    """A tensor that outlives the pass that made it."""

    storage: int
    storage_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    sharding: "_Sharding | None" = None
    """Of a tensor that is split over ranks, how; the rest is about its part here."""


@dataclass(frozen=True)
class _Mark:
    """A place in the trace."""

    event: int
    wait: int


@dataclass(frozen=True)
class _Segment:
    """What one pass did."""

    events: Events
    waits: list[tuple[int, int]]
    """Places in `events` where an exchange is waited for, and the place of that exchange among its operators."""

    @property
    def born(self) -> set[int]:
        """Storages that it made."""
        return {index for kind, index in self.events if kind == ALLOCATE}

    @property
    def ended(self) -> set[int]:
        """Storages that it gave back."""
        return {index for kind, index in self.events if kind == FREE}


@dataclass
class _Pass:
    """The passes of one micro-batch, as far as they have come."""

    output: "weakref.ref[Tensor] | None" = None
    play: Callable[[Tensor | None], None] | None = None
    """Plays the backward pass, once the gradient of the output is there."""
    places: dict[int, int] | None = None
    """Storage of the record → the one that stands for it; None where the pass was run."""
    begin: "_Mark | None" = None
    """Where the module's own backward pass began, after that of the loss."""
    called: "_Mark | None" = None
    """Where that of the loss began."""
    arriving: int | None = None
    """Storage of the gradient that came from the loss."""


@dataclass
class _Record:
    """What the passes of one micro-batch did."""

    forward: _Segment
    output: _Result
    backward: _Segment | None = None
    gradients: tuple[_Result | None, ...] = ()
    """Of what the stage was given."""
    arriving: int | None = None


@dataclass
class _Part:
    """One stage of the pipeline on this rank."""

    record: _Record | None = None
    passes: list[_Pass] = field(default_factory=list)
    ended: int = 0
    """Backward passes of this step."""


class RepeatedPasses:
    """Plays what the stages of one rank repeat."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._parts: dict[nn.Module, _Part] = {}
        self.is_refused = False
        """A pass could not be played, so that nothing of the step holds; PyTorch wraps the error that says so."""

    def begin(self) -> None:
        """A step begins: its first micro-batch is run again."""
        for part in self._parts.values():
            part.passes, part.ended = [], 0

    def forward(self, module: nn.Module, run: Callable[[], Tensor]) -> Tensor:
        """What `module` makes of the next micro-batch."""
        part = self._parts.setdefault(module, _Part())
        if part.passes and part.record is not None:
            return self._play_forward(part, part.record)
        begin = self._mark()
        output = run()
        passing = _Pass(weakref.ref(output))
        if len(part.passes) == REPEATS_FROM:
            segment = self._segment(begin)
            part.record = _Record(segment, self._result(output, segment.born - segment.ended))
            if not segment.ended <= segment.born:
                self._refuse()
            if output.grad_fn is not None:
                output.grad_fn.register_prehook(lambda gradients: self._arrives(passing, gradients))
        part.passes.append(passing)
        return output

    def backward(
        self, module: nn.Module, loss: Tensor | None, run: Callable[[], Sequence[Tensor | None]]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of what the module was given, of the earliest micro-batch that has none; `loss` of a last stage."""
        part = self._parts[module]
        number, part.ended = part.ended, part.ended + 1
        passing = part.passes[number]
        if passing.places is not None:
            assert part.record is not None
            return self._play_backward(part.record, passing, loss)
        passing.called = passing.begin = self._mark()
        gradients = tuple(run())
        record = part.record
        if number == REPEATS_FROM and record is not None and record.backward is None:
            self._finish(record, passing, gradients)
        return gradients

    def _refuse(self) -> NoReturn:
        self.is_refused = True
        raise NotRepeatable

    def _arrives(self, passing: _Pass, gradients: tuple[Tensor | None, ...]) -> None:
        """The backward pass comes to the module: what was before is that of the loss."""
        passing.begin = self._mark()
        storages = [None if each is None else self._recorder.storage_of(each) for each in gradients]
        passing.arriving = next((each for each in storages if each is not None), None)

    def _finish(self, record: _Record, passing: _Pass, gradients: tuple[Tensor | None, ...]) -> None:
        assert passing.begin is not None
        assert passing.called is not None
        before = self._recorder.trace.events[passing.called.event : passing.begin.event]
        of_loss = {index for kind, index in before if kind == ALLOCATE} - {passing.arriving}
        backward = self._segment(passing.begin, without=of_loss)
        left = backward.born - backward.ended
        record.gradients = tuple(None if each is None else self._result(each, left) for each in gradients)
        outputs = {each.storage for each in record.gradients if each is not None}
        own = record.forward.born | backward.born
        arriving = set() if passing.arriving in own or passing.arriving is None else {passing.arriving}
        if (
            left != outputs
            or not backward.ended <= own | arriving
            or record.forward.born - record.forward.ended - backward.ended - {record.output.storage}
        ):
            self._refuse()
        record.arriving = next(iter(arriving & backward.ended), None)
        record.backward = backward

    def _mark(self) -> _Mark:
        return _Mark(len(self._recorder.trace.events), len(self._recorder.trace.waits))

    def _segment(self, begin: _Mark, without: Set[int] = frozenset()) -> _Segment:
        """What happened from `begin` on; the ends of storages in `without` are those of the program's own tensors."""
        trace = self._recorder.trace
        events = trace.events[begin.event :]
        places = {index: number for number, index in enumerate(index for kind, index in events if kind == OP)}
        own = [place for place, (kind, index) in enumerate(events) if kind == FREE and index in without]
        waits = [(place - begin.event, op) for place, op in trace.waits[begin.wait :]]
        waits = [(place - sum(each < place for each in own), op) for place, op in waits]
        events = [event for place, event in enumerate(events) if place not in own]
        if any(op not in places for _, op in waits):
            self._refuse()
        return _Segment(events, [(place, places[op]) for place, op in waits])

    def _result(self, tensor: Tensor, left: set[int]) -> _Result:
        storage = self._recorder.storage_of(tensor)
        if storage is None or storage not in left:
            self._refuse()
        part = stored(tensor)
        return _Result(
            storage, part.untyped_storage().nbytes(), tuple(part.shape), part.stride(), int(part.storage_offset()),
            part.dtype, _sharding(tensor),
        )  # fmt: skip

    def _play_forward(self, part: _Part, record: _Record) -> Tensor:
        places = self._repeat(record.forward, {}, {})
        passing = _Pass(places=places)
        output = _Played.apply(_anchor(), lambda: self._again(record.output, places), passing)
        passing.output = weakref.ref(output)
        part.passes.append(passing)
        return output

    def _play_backward(self, record: _Record, passing: _Pass, loss: Tensor | None) -> tuple[Tensor | None, ...]:
        if record.backward is None:  # a schedule that comes to a third micro-batch before the second is over
            self._refuse()
        backward, gradients = record.backward, list[Tensor | None]()

        def play(arriving: Tensor | None) -> None:
            places = {old: new for old, new in (passing.places or {}).items() if old != record.output.storage}
            output = passing.output and passing.output()
            tensors = {record.output.storage: None if output is None else stored(output)}
            if record.arriving is not None:
                tensors[record.arriving] = None if arriving is None else stored(arriving)
            passing.places = {}
            begin = len(self._recorder.trace.ops)
            places = self._repeat(backward, places, tensors)
            self._label_recomputed(begin)
            gradients.extend(None if each is None else self._again(each, places) for each in record.gradients)

        if loss is None:
            play(None)
        else:
            passing.play = play
            torch.autograd.backward([loss])
            passing.play = None
        return tuple(gradients)

    def _repeat(self, segment: _Segment, places: dict[int, int], tensors: dict[int, Tensor | None]) -> dict[int, int]:
        """Record a segment once more, with its waits."""
        recorder, trace = self._recorder, self._recorder.trace
        first, begin = len(trace.ops), 0
        for place, op in segment.waits:
            recorder.repeat(segment.events[begin:place], places, tensors)
            trace.waits.append((len(trace.events), first + op))
            begin = place
        return recorder.repeat(segment.events[begin:], places, tensors)

    def _label_recomputed(self, begin: int) -> None:
        """What a backward pass does inside of a module is recomputation, which a step without phases does not label.

        Graphs name their modules in both passes.
        """
        ops, calls = self._recorder.trace.ops, self._recorder.trace.calls
        if self._recorder.current_phase is Phase.BACKWARD:
            for index in range(begin, len(ops)):
                if ops[index].module and calls[ops[index].call].issuer == Issuer.EAGER:
                    ops[index] = replace(ops[index], recomputed=True)

    def _again(self, result: _Result, places: dict[int, int]) -> Tensor:
        """A tensor like one of the record, in the storage that stands for its own."""
        with self._recorder.muted():
            base = torch.empty(result.storage_bytes, dtype=torch.uint8, device=self._recorder.device)
            tensor = base.view(result.dtype).as_strided(result.shape, result.stride, result.offset)
            self._recorder.adopt(places[result.storage], base)
            if result.sharding is None:
                return tensor
            mesh, placements, shape, stride = result.sharding
            return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=shape, stride=stride)


class FirstPasses:
    """Runs the passes of the first micro-batches of each stage, which capture its graphs, and leaves out the others.

    What a stage sends on, and the gradient of what it was given, are empty where they are left out: for a step that
    nothing is recorded of.
    """

    def __init__(self):
        self._outputs: dict[nn.Module, Tensor] = {}
        self._gradients: dict[nn.Module, tuple[Tensor | None, ...]] = {}
        self._begun, self._ended = Counter[nn.Module](), Counter[nn.Module]()

    def begin(self) -> None:
        """A step begins."""
        self._begun.clear()
        self._ended.clear()

    def forward(self, module: nn.Module, run: Callable[[], Tensor]) -> Tensor:
        """What `module` makes of the next micro-batch."""
        self._begun[module] += 1
        if self._begun[module] > FIRST:
            return torch.empty_like(self._outputs[module]).requires_grad_()
        output = run()
        self._outputs[module] = output.detach()
        return output

    def backward(
        self, module: nn.Module, loss: Tensor | None, run: Callable[[], Sequence[Tensor | None]]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of what the module was given, of the earliest micro-batch that has none."""
        self._ended[module] += 1
        if self._ended[module] <= FIRST:
            self._gradients[module] = tuple(run())
        return tuple(None if each is None else torch.empty_like(each) for each in self._gradients[module])


class _Played(torch.autograd.Function):
    """Stands in the graph of a loss for everything that a stage did."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, make: Callable[[], Tensor], passing: _Pass) -> Tensor:  # type: ignore[override]
        ctx.passing = passing
        return make()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[None, None, None]:  # type: ignore[override]
        ctx.passing.play(gradient)
        return None, None, None


def _anchor() -> Tensor:
    """Something on the host that requires gradients, so that the result does."""
    return torch.zeros((), requires_grad=True, device="cpu")


def _sharding(tensor: Tensor) -> "_Sharding | None":
    if not isinstance(tensor, DTensor):
        return None
    return tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()
