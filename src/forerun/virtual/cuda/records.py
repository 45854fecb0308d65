"""What was seen of a program's training: its optimizer steps and its training loops."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, mode
from typing import Any

import torch

from forerun.trace import OP, Trace
from forerun.virtual.cuda.loaders import WatchedLoader
from forerun.virtual.cuda.loop_rests import RestWatch
from forerun.virtual.cuda.trainer_lengths import ProgramLength

SAME_WORK = 1e-3
"""Relative difference of work between steps that are alike."""
PICTURE_DIMENSIONS = 3
"""Channels, height and width."""


@dataclass(frozen=True)
class StepSpan:
    """One optimizer step: the events of the trace from `begin` to `end`."""

    begin: int
    end: int
    work: tuple[int, int]
    """Arithmetic (FLOP) and bytes moved by its operators."""
    allocated_bytes: int
    """What the allocator has given out when it ends."""
    samples: int
    tokens: int
    fetched: tuple[WatchedLoader, ...] = ()
    """The data loader of each batch that was made in it."""
    backward_lines: tuple[str, ...] = ()
    """The line of the program of each of its backward passes whose gradients add up in its update."""
    turn_begin: int = 0
    """Event at which the loop's turn begins that its update is in: behind `begin` where other optimizers follow it."""
    saved_bytes: int = 0
    """Of checkpoints that were written in it, as by a loop whose turns are whole epochs."""

    @property
    def turns_of_loaders(self) -> dict[str, int]:
        """Batches of a pass of each loader, by the line that made it, and by that of a package which did."""
        return {
            line: each.batches for each in self.fetched if each.batches for line in each.line.rstrip(")").split(" (")
        }

    @property
    def batches(self) -> int:
        """That the step took, of the loader that it took most of: several are gone through side by side."""
        return max(Counter(self.fetched).values(), default=0)

    @property
    def batches_by_pass(self) -> dict[int, int]:
        """The same by how many a pass of the loader has; of loaders with equally many, the fewest."""
        counts = Counter(self.fetched)
        by_pass = dict[int, int]()
        for loader, count in counts.items():
            if loader.batches:
                by_pass[loader.batches] = min(count, by_pass.get(loader.batches, count))
        return by_pass

    def repeated(self, fetched: Sequence[WatchedLoader], backward_lines: Sequence[str]) -> "StepSpan":
        """A step of as many batches and backward passes, the last of those made since."""
        batches, passes = len(self.fetched), len(self.backward_lines)
        own = tuple(fetched[-batches:]) if batches else ()
        return replace(self, fetched=own, backward_lines=tuple(backward_lines[-passes:]))

    def is_like(self, other: "StepSpan") -> bool:
        """Whether both do the same work: a step that logs reads a number more."""
        return all(abs(a - b) <= SAME_WORK * max(a, b) for a, b in zip(self.work, other.work, strict=True))


def work_between(trace: Trace, begin: int, end: int) -> tuple[int, int]:
    """Arithmetic (FLOP) and bytes moved by the operators from one event of a trace to another."""
    calls = [trace.calls[trace.ops[index].call] for kind, index in trace.events[begin:end] if kind == OP]
    moved = sum((c.bytes_read + c.bytes_written) * c.times for c in calls if not c.is_view)
    return sum(c.flops * c.times for c in calls), moved


BY_COUNTER = "a counter"
"""In place of the line of a loop whose stages a counter of the program's own begins."""


@dataclass(frozen=True)
class Stage:
    """Some turns of a loop in which it trains alike (`loop_stages.py`); all of them where it has no `line`."""

    share: float = 1.0
    """Of the loop's turns."""
    line: str = ""
    """File and line of the loop."""
    until: str = ""
    """The turn with which the next stage begins, in words."""

    def split(self, first: "Stage") -> tuple["Stage", "Stage"]:
        """Its first part and what is left of it."""
        share = min(first.share, self.share)
        return replace(first, share=share), Stage(self.share - share, first.line)

    def plus(self, other: "Stage") -> "Stage":
        """One stage of both, up to the end of the other one."""
        of_other = other.share if other.line else 0.0
        return Stage(self.share + of_other, self.line, other.until)


@dataclass(frozen=True)
class TrainingLoop:
    """A training loop of a program that is over, and after which another one came."""

    spans: list[StepSpan]
    warm_from: int
    length: ProgramLength | None
    line: str
    """File and line that stepped its optimizer last."""
    between: RestWatch = field(default_factory=RestWatch)
    """What the program did between its steps."""
    stage: Stage = Stage()

    @property
    def warm(self) -> list[StepSpan]:
        """Its steps but for those that prepare."""
        return self.spans[self.warm_from :] if self.spans else []

    @property
    def samples_per_step(self) -> float:
        """Mean over the warm steps."""
        return sum(span.samples for span in self.warm) / max(1, len(self.warm))

    @property
    def tokens_per_step(self) -> float:
        """Mean over the warm steps, padding included; 0 where no ids are given to the model."""
        return sum(span.tokens for span in self.warm) / max(1, len(self.warm))

    def joined(self, earlier: list["TrainingLoop"]) -> tuple[list["TrainingLoop"], "TrainingLoop"]:
        """The loops before it and itself; one stage with the last of them where both are alike."""
        last = earlier[-1] if earlier else None
        if last is None or not last.stage.until or not self.spans or not last.is_like(self):
            return earlier, self
        rests = self.between.rests
        if last.stage.share > self.stage.share:  # what only few turns do is no part of each
            usual = [rest for rest in last.between.rests if not rest.is_last]
            lines = {rest.line for rest in usual}
            rests = [*usual, *(rest for rest in rests if rest.is_last or rest.line not in lines)]
        cuts, starts = [*last.between.cuts, *self.between.cuts], last.between.starts
        between = replace(self.between, rests=rests, cuts=cuts, starts=starts)
        stage, length = last.stage.plus(self.stage), self._length_beside(last)
        return earlier[:-1], replace(self, stage=stage, between=between, length=length)

    def _length_beside(self, last: "TrainingLoop") -> ProgramLength | None:
        """Its length, were its turns the mean of its own and of those of the stage before it, which may be longer."""
        own, other, shares = self.length, last.length, self.stage.share + last.stage.share
        if own is None or other is None or own.steps == other.steps or not own.steps or not shares:
            return own
        steps = (self.stage.share * own.steps + last.stage.share * other.steps) / shares
        return own.scaled(steps / own.steps, self.stage.line)

    def with_rests_of(self, later: "TrainingLoop") -> "TrainingLoop":
        """A stage that ended within a turn: what a later one does between its steps it does as well."""
        if self.stage.line != BY_COUNTER or later.stage.line != BY_COUNTER or self.between.rests:
            return self
        return replace(
            self, between=replace(later.between, rests=[each for each in later.between.rests if not each.is_last])
        )

    def is_like(self, other: "TrainingLoop") -> bool:
        """Whether the steps of both do the same work, or differ no more than those of one of them among themselves."""
        for kind in range(len(self.warm[-1].work)):
            mine, others = ([span.work[kind] for span in loop.warm] for loop in (self, other))
            spread = max(max(mine) - min(mine), max(others) - min(others))
            if abs(fmean(mine) - fmean(others)) > max(SAME_WORK * max(*mine, *others), spread):
                return False
        return True

    @property
    def whole_length(self) -> ProgramLength | None:
        """Its length, of which a stage has its share."""
        length, stage = self._length_of_turns, self.stage
        if length is None or stage.share == 1.0:
            return length
        return length.scaled(stage.share, stage.line)

    @property
    def _length_of_turns(self) -> ProgramLength | None:
        """Its length with the steps that a branch of some turns makes beside those that its loops' turns count."""
        share = self._steps_by_counted
        if self.length is None or not self.length.loops or share <= 1:
            return self.length
        epoch = self.length.steps_per_epoch
        return replace(
            self.length,
            steps=round(share * self.length.steps),
            source=f"{self.length.source}, and a branch that trains in some of their turns",
            steps_per_epoch=None if epoch is None else round(share * epoch),
            loops=tuple((line, round(share * steps)) for line, steps in self.length.loops),
        )

    @property
    def _steps_by_counted(self) -> float:
        """Steps of a cycle of its branches by those that the batches in it, or else its counter, say."""
        branches, warm = self.between.branches, self.spans[self.warm_from :]
        if branches.cycle_steps == 1 or len(warm) != branches.cycle_steps:
            return 1.0
        batches = [len(span.fetched) for span in warm if span.fetched]
        return len(warm) * mode(batches) / sum(batches) if batches else branches.steps_by_counter


def counted(before: tuple[int, int, int] | None, inputs: Iterable[Any]) -> tuple[int, int, int]:
    """Calls, samples and tokens of a module with one more call, that of `inputs`."""
    inputs = list(inputs)
    ids = [tensor for tensor in tensors_given(inputs) if tensor.dim() == 2 and not tensor.is_floating_point()]
    calls, samples, tokens = before or (0, 0, 0)
    rows = samples_given(inputs)  # a graph's edges are no ids of its nodes
    return calls + 1, samples + rows, tokens + (ids[0].numel() if ids and _rows_of(ids[0]) == rows else 0)


def tensors_given(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors among the arguments of a call, and in a batch by name."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from tensors_given(value.values())


def samples_given(values: Iterable[Any]) -> int:
    """Samples among the arguments of a call: as its first tensor has rows, else as a list has pictures or samples.

    Detectors are given a list of pictures, which differ in size; a list of whole batches is none.
    """
    values = list(values)
    rows = next((_rows_of(tensor) for tensor in tensors_given(values) if tensor.dim() > 0), 0)
    lists = (value for value in values if isinstance(value, list) and value and all(map(_is_sample, value)))
    return rows or len(next(lists, []))


def _rows_of(tensor: torch.Tensor) -> int:
    """Rows of a tensor, and under `torch.func.vmap` those of each of its turns: it shows one of them."""
    rows, wrapping = tensor.shape[0], torch._C._functorch  # type: ignore[attr-defined]
    while wrapping.is_functorch_wrapped_tensor(tensor):
        inner = wrapping.get_unwrapped(tensor)
        if wrapping.is_batchedtensor(tensor):
            rows *= inner.shape[wrapping.maybe_get_bdim(tensor)]
        tensor = inner
    return rows


def _is_sample(value: Any) -> bool:
    return value.dim() == PICTURE_DIMENSIONS if isinstance(value, torch.Tensor) else isinstance(value, Mapping)
