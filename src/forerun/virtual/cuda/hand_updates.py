"""Steps of programs without a PyTorch optimizer: `p.data -= rate * p.grad`, Keras, optimizers of one's own.

Such a step ends at the last write into a trained tensor between two backward passes. Which tensors are trained is
known when the next backward pass begins, so what the program did until each write is noted until then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from forerun.step.parallel import local
from forerun.trace import OP, Category, Phase
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.live_objects import live_objects
from forerun.virtual.recorder import Recorder


@dataclass(frozen=True)
class Progress:
    """How far a step has come: what belongs to it, and what to the next one."""

    events: int
    """Events of the trace."""
    calls: dict[int, tuple[int, int, int]]
    """Calls, samples and tokens of each outermost module."""
    fetched: int
    """Batches that were made."""
    allocated_bytes: int
    line: str
    """File and line of the program that is running."""

    def calls_since(self, before: "Progress") -> dict[int, tuple[int, int, int]]:
        """What was called after `before`."""
        rest = {module: (now, before.calls.get(module, (0, 0, 0))) for module, now in self.calls.items()}
        return {
            module: (now[0] - then[0], now[1] - then[1], now[2] - then[2])
            for module, (now, then) in rest.items()
            if now != then
        }


class HandUpdates:
    """Writes into tensors of the device after a backward pass, as long as no optimizer makes them."""

    def __init__(self, recorder: Recorder, progress: Callable[[], Progress]):
        self._recorder, self._progress = recorder, progress
        self._after_backward: int | None = None
        """Events of the trace when the backward pass was over; None: none is over in this step."""
        self._writes: dict[int, Progress] = {}
        """Storage that was written → how far the step had come then."""
        self._written_before: set[int] = set()
        self.states: set[int] = set()
        """Storages that every step writes and that are not trained: momenta and the like."""

    def backward_is_over(self) -> None:
        """A backward pass has ended: what is written from now on may be an update."""
        self._after_backward = len(self._recorder.trace.events)

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """An operator has written into `tensors`."""
        if self._after_backward is None:
            return
        progress = self._progress()
        for tensor in tensors:
            storage = self._recorder.storage_of(tensor)
            if storage is not None:
                self._writes[storage] = progress

    def take(self) -> Progress | None:
        """Where the step ended that the writes since the last backward pass made; None: they were no update."""
        after, self._after_backward = self._after_backward, None
        writes, self._writes = self._writes, {}
        if after is None or not writes:
            return None
        weights = {
            index: tensor for tensor in trained_tensors() if (index := self._recorder.storage_of(tensor)) is not None
        }
        ends = [writes[index] for index in writes.keys() & weights.keys()]
        if not ends:
            return None
        end = max(ends, key=lambda each: each.events)
        self._own(weights, {index for index, at in writes.items() if at.events <= end.events})
        trace = self._recorder.trace
        for kind, index in trace.events[after : end.events]:
            if kind == OP:
                trace.ops[index] = replace(trace.ops[index], phase=Phase.OPTIMIZER)
        return end

    def _own(self, weights: dict[int, torch.Tensor], targets: set[int]) -> None:
        self._recorder.own(weights.values(), Category.PARAMETER)
        self._recorder.own((each.grad for each in weights.values() if each.grad is not None), Category.GRADIENT)
        others = (targets - weights.keys()) & self._recorder.alive()
        self.states |= others & self._written_before
        self._written_before = others
        for index in self.states:
            self._recorder.trace.storages[index].owner = Category.OPTIMIZER_STATE


def trained_tensors() -> list[torch.Tensor]:
    """Every tensor of the device that gradients are made for."""
    tensors = live_objects(torch.Tensor)
    return [each for each in tensors if each.requires_grad and _is_leaf(each) and is_virtual(local(each))]


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Whether nothing made it. PyTorch refuses to say so of one of several views whose base was written to since.

    FSDP1 leaves such views of a flat parameter behind, which its backward pass never reads again.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False
