"""Accumulation repeats one forward and backward pass dozens of times: alike ones are played from the record.

A micro-batch is played where a module is called with inputs like those of two calls that did the same, all its
gradients are there and are added to, and nothing but its results leads from it to the loss. The loss itself and all
else that the program does around the module runs as ever. What differs from a real pass is only that memory whose end
the record does not tell is given back early, so that the peak stays that of the passes that ran.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from forerun.trace import ALLOCATE, FREE, OP
from forerun.virtual.cuda.call_keys import gradients_of, mask_values, training_key
from forerun.virtual.cuda.call_results import CallResults
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.cuda.shadow import shadow_of
from forerun.virtual.recorder import Recorder

ALIKE = 2
"""Micro-batches that must have done the same before others are played."""
Events = list[tuple[str, int]]


@dataclass
class PassRecord:
    """What a forward and a backward pass of one module did."""

    module: weakref.ref[nn.Module]
    forward: Events
    backward: Events
    arriving: dict[int, int]
    """Storage of each gradient that arrived, and the number of the result whose gradient it is."""
    results: CallResults
    others: tuple[set[int], set[int]]
    """Storages that outlive both passes, made in the one and in the other; another micro-batch later they must be gone.

    In the forward pass these are mostly weights that autocast has cast, in the backward pass gradients of what is no
    parameter, which live as long as the graph.
    """
    work: tuple[Any, ...]
    """Operators, sizes and counters, by which two passes are compared."""
    advances: dict[str, int]
    masks: "_Masks"
    times: int = 1


@dataclass(frozen=True)
class _Masks:
    """Masks with which two passes did the same: one and the same, or any where they differed."""

    one: Hashable
    is_any: bool = False

    def __contains__(self, masks: Hashable) -> bool:
        return self.is_any or masks == self.one


@dataclass(frozen=True)
class _Start:
    """Where a call began, and what it counts."""

    event: int
    node: int
    """Number of the first node of its autograd graph."""
    masks: Hashable
    """Values of masks and lengths among its arguments."""
    advances: dict[str, int]
    """By how much each counter among the module's buffers went up, such as BatchNorm's of its batches."""


@dataclass
class _Pass:
    """A micro-batch on its way: its forward pass is over, its backward pass not yet."""

    key: Hashable
    module: nn.Module
    forward: Events
    results: CallResults
    others: set[int]
    """What it made that is still there, its results apart."""
    start: "_Start"
    gradients: int
    """Which parameters had a gradient."""
    begin: int = -1
    """Event at which its backward pass began; -1: not yet."""
    storages: int = 0
    """Storages that had been made by then."""
    arriving: dict[int, int] = field(default_factory=dict)


class RepeatedMicroBatches:
    """Plays forward and backward passes that were seen often enough."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._records: dict[Hashable, PassRecord] = {}
        self._never: set[Hashable] = set()
        """Keys of calls that do not repeat as they should."""
        self._pending: list[_Pass] = []
        self._in_backward = False

    def __call__(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The results of a call of `module` that trains, run or played."""
        leaves = pytree.tree_flatten((args, kwargs))
        key = None if self._in_backward else training_key(module, *leaves)
        if key is None or key in self._never:
            return original(module, *args, **kwargs)
        record, masks = self._records.get(key), tuple(map(mask_values, leaves[0]))
        if record is not None and record.times >= ALIKE and record.module() is module and masks in record.masks:
            return self._play(record, module, leaves[0])
        begin, first_node = len(self._recorder.trace.events), _next_node()
        before = {name: int(value) for name, value in _counters(module).items()}
        output = original(module, *args, **kwargs)
        advances = {name: int(value) - before.get(name, 0) for name, value in _counters(module).items()}
        self._watch(key, module, _Start(begin, first_node, masks, advances), output, leaves[0])
        return output

    def _watch(self, key: Hashable, module: nn.Module, start: "_Start", output: Any, arguments: list[Any]) -> None:
        """Wait for the backward pass of a call that was run."""
        if self._pending:  # two calls before a backward pass: it would not be told which part belongs to which
            self._never |= {key, *(each.key for each in self._pending)}
            self._pending.clear()
            return
        events = self._recorder.trace.events[start.event :]
        fresh = {index for kind, index in events if kind == ALLOCATE}
        left = fresh - {index for kind, index in events if kind == FREE}
        results = CallResults.of(output, arguments, left, self._recorder)
        if results is None or not _ends_inside(events, fresh) or _keeps_graph(module):
            self._never.add(key)
            return
        others = left - {each.storage for each in results[0].tensors}
        passing = _Pass(key, module, events, results[0], others, start, gradients_of(module))
        nodes: dict[Any, list[int]] = {}
        for number, tensor in enumerate(results[1]):
            if tensor.grad_fn is not None:
                nodes.setdefault(tensor.grad_fn, []).append(number)
        for node, numbers in nodes.items():
            outputs = {results[1][number].output_nr: number for number in numbers}
            node.register_prehook(lambda gradients, outputs=outputs: self._begin(passing, gradients, outputs))
        if nodes:
            self._pending.append(passing)

    def _begin(self, passing: _Pass, gradients: tuple[torch.Tensor | None, ...], outputs: dict[int, int]) -> None:
        """The backward pass has come to a result of the module; nodes run latest first: the program's are over."""
        if passing not in self._pending or not self._in_backward:  # a second time through the same graph
            self._never.add(passing.key)
            return
        if passing.begin < 0:
            passing.begin, passing.storages = len(self._recorder.trace.events), len(self._recorder.trace.storages)
        for place, number in outputs.items():
            gradient = gradients[place]
            storage = None if gradient is None else self._recorder.storage_of(gradient)
            if storage is not None and storage < passing.storages:
                passing.arriving[storage] = number

    def backward_begins(self, roots: Iterable[torch.Tensor]) -> None:
        """The program calls for gradients of `roots`."""
        self._in_backward = True
        if self._pending:
            earliest = _earliest_node(roots)
            self._never |= {
                each.key
                for each in self._pending
                if earliest < each.start.node or gradients_of(each.module) != each.gradients  # zeroed after the call
            }

    def backward_is_over(self) -> None:
        """The program has its gradients."""
        self._in_backward = False
        pending, self._pending = self._pending, []
        for passing in pending:
            if passing.begin < 0 or passing.key in self._never:
                continue
            if gradients_of(passing.module) != passing.gradients:  # not added to, but made
                self._never.add(passing.key)
                continue
            events = self._recorder.trace.events[passing.begin :]
            ended = {index for kind, index in events if kind == FREE}
            others = passing.others - ended, {index for kind, index in events if kind == ALLOCATE} - ended
            work = self._work(passing.forward), self._work(events), passing.start.advances
            before = self._records.get(passing.key)
            is_like = before is not None and before.work == work and not _union(before.others) & self._recorder.alive()
            self._records[passing.key] = PassRecord(
                weakref.ref(passing.module), passing.forward, events, passing.arriving, passing.results, others, work,
                passing.start.advances, _masks_of(passing, before if is_like else None),
                before.times + 1 if before is not None and is_like else 1,
            )  # fmt: skip

    def _work(self, events: Events) -> tuple[Any, ...]:
        trace = self._recorder.trace
        return tuple(trace.ops[index].call for kind, index in events if kind == OP), tuple(
            trace.storages[index].bytes for kind, index in events if kind == ALLOCATE
        )

    def _play(self, record: PassRecord, module: nn.Module, arguments: list[Any]) -> Any:
        for name, counter in _counters(module).items():
            counter += record.advances[name]
        tensors = list(_Played.apply(_anchor(), _Player(record, self._recorder)))  # type: ignore[arg-type]
        return record.results.around(tensors, arguments)


class _Player:
    """One micro-batch that is played."""

    def __init__(self, record: PassRecord, recorder: Recorder):
        self._record, self._recorder = record, recorder
        self._places: dict[int, int] = {}
        self._saved: dict[int, torch.Tensor] = {}
        """Results that the module needs in its backward pass."""
        self._late: list[int] = []
        module = record.module()
        self._gradients = 0 if module is None else gradients_of(module)

    def forward(self) -> list[torch.Tensor]:
        """Play the forward pass; returns the module's new tensors."""
        record, recorder = self._record, self._recorder
        self._places = recorder.repeat(record.forward)
        ends_later = {index for kind, index in record.backward if kind == FREE}
        tensors = record.results.tensors_again(self._places, recorder)
        for index in record.others[0]:
            recorder.release(self._places[index])
        results = {each.storage for each in record.results.tensors}
        self._places = {old: new for old, new in self._places.items() if old in ends_later - results}
        for result, tensor in zip(record.results.tensors, tensors, strict=True):
            if result.storage in ends_later:
                with recorder.muted():  # without the graph that the result will have: it would never end
                    self._saved[result.storage] = tensor.detach()
        return tensors

    def backward(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Play the backward pass."""
        module = self._record.module()
        if module is not None and gradients_of(module) != self._gradients:  # zeroed after this call, for once
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        arrived = {storage: gradients[number] for storage, number in self._record.arriving.items()}
        places = self._recorder.repeat(self._record.backward, self._places, arrived | self._saved)
        self._late = [places[index] for index in self._record.others[1]]
        self._places, self._saved = {}, {}

    def __del__(self) -> None:
        """The graph is gone."""
        if not self._recorder.is_closed:
            for place in self._late:
                self._recorder.release(place)

    @property
    def without_gradient(self) -> list[int]:
        """Numbers of the results through which no gradient flows."""
        return [number for number, each in enumerate(self._record.results.tensors) if not each.requires_grad]


class _Played(torch.autograd.Function):
    """Stands in the graph for everything that a module did."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, player: _Player) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.player = player
        tensors = player.forward()
        ctx.mark_non_differentiable(*[tensors[number] for number in player.without_gradient])
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None]:  # type: ignore[override]
        ctx.player.backward(gradients)
        return None, None


def _anchor() -> torch.Tensor:
    """Something on the host that requires gradients, so that the results do."""
    return torch.zeros((), requires_grad=True, device="cpu")


def _masks_of(passing: _Pass, before: PassRecord | None) -> _Masks:
    one = passing.start.masks
    return _Masks(one, is_any=before is not None and (before.masks.is_any or before.masks.one != one))


def _counters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Values of the counters among a module's buffers."""
    counters = {}
    for name, buffer in module.named_buffers():
        shadow = shadow_of(buffer) if is_virtual(buffer) else None
        if shadow is not None and buffer.dim() == 0 and not buffer.is_floating_point():
            counters[name] = shadow.value
    return counters


def _next_node() -> int:
    """Number that the next node of an autograd graph gets."""
    return torch._C._autograd._get_sequence_nr()  # type: ignore[attr-defined]


def _earliest_node(roots: Iterable[torch.Tensor]) -> int:
    """The lowest number of a node below `roots`: nodes from before a module was called run after its own."""
    nodes = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
    visited, earliest = set(nodes), _next_node()
    while nodes:
        node = nodes.pop()
        earliest = min(earliest, node._sequence_nr())  # that of a leaf's gradient is the highest there is
        fresh = [each for each, _ in node.next_functions if each is not None and each not in visited]
        visited.update(fresh)
        nodes += fresh
    return earliest


def _ends_inside(events: Events, fresh: set[int]) -> bool:
    """Whether only what was made ended."""
    return all(index in fresh for kind, index in events if kind == FREE)


def _union(pair: tuple[set[int], set[int]]) -> set[int]:
    return pair[0] | pair[1]


def _keeps_graph(module: nn.Module) -> bool:
    """Whether a module holds a tensor of this call that gradients flow through, such as a loss of its own."""
    attributes = (value for part in module.modules() for value in vars(part).values())
    tensors = (value for value in attributes if isinstance(value, torch.Tensor))
    return any(tensor.grad_fn is not None for tensor in tensors)
