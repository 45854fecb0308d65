"""What a program did on a card, in order and with times: the data behind `--snapshot`, `--trace` and `--html`."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from forerun.clock.between_ranks import job_of_trace
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import OperatorSpan, operator_spans
from forerun.hardware.catalogue import Device
from forerun.memory.card import replay_on_card
from forerun.memory.history import AllocatorHistory, play_history
from forerun.memory.overhead import workspace_bytes
from forerun.memory.reductions import sized_for
from forerun.memory.replay import MemoryReplay
from forerun.trace import OP, Trace

if TYPE_CHECKING:
    from forerun.virtual.cuda.run import ProgramRun


@dataclass(frozen=True)
class StepEvents:
    """Events of the trace from `begin` to `end` that make one optimizer step."""

    begin: int
    end: int
    is_warm: bool


@dataclass(frozen=True)
class ProgramAccount:
    """A program's trace on one device; times and memory are worked out when they are asked for."""

    trace: Trace
    device: Device
    command: str
    steps: tuple[StepEvents, ...]
    end: int = 0
    """Event of the trace at which ends what follows the last step; 0 where nothing does."""

    @property
    def stop(self) -> int:
        """Event of the trace at which the program's own work ends: what follows only tears it down."""
        if self.steps:
            return max(self.steps[-1].end, self.end)
        return self.trace.failures[-1][0] if self.trace.failures else len(self.trace.events)

    @cached_property
    def spans(self) -> list[OperatorSpan]:
        """When each operator was issued and ran."""
        job = job_of_trace(self.device, self.trace)
        costs = PriorCosts.of(self.trace, self.device, world_size=self.trace.world_size, job=job)
        return operator_spans(self.trace, costs)

    @cached_property
    def host_seconds(self) -> list[float]:
        """The host's clock at each event of the trace: when it issues the operator that the event belongs to."""
        spans, times = iter(self.spans), []
        last = 0.0
        for kind, _ in self.trace.events:
            if kind == OP:
                span = next(spans)
                times.append(span.issue_begin)
                last = span.issue_end
            else:
                times.append(last)
        return times

    @cached_property
    def steps_with_spans(self) -> list[tuple[StepEvents, list[OperatorSpan]]]:
        """Each step with its operators."""
        before = [0]  # operators before each event
        for kind, _ in self.trace.events:
            before.append(before[-1] + (kind == OP))
        return [(step, self.spans[before[step.begin] : before[step.end]]) for step in self.steps]

    @cached_property
    def memory(self) -> MemoryReplay:
        """Peak, breakdown and curve of everything the program did."""
        return replay_on_card(replace(self.trace, warm_from=0), self.device, passes=1).memory

    @cached_property
    def history(self) -> AllocatorHistory:
        """What the allocator did until the program's own work ended."""
        capacity = int(self.device.memory_bytes - self.device.context_bytes.expected)
        return play_history(
            sized_for(self.trace, self.device), workspace_bytes=workspace_bytes(self.device),
            capacity_bytes=capacity, stop=self.stop,
        )  # fmt: skip


def account_of(run: "ProgramRun", device: Device, command: str, card: int = 0) -> ProgramAccount:
    """The account of a program that ran, on one of the devices that it was forecast for.

    Where its process drove several cards, with the memory of the one of number `card`.
    """
    watcher = run.watcher
    warm_from = watcher.warm_from if watcher.spans else 0
    steps = tuple(StepEvents(span.begin, span.end, number >= warm_from) for number, span in enumerate(watcher.spans))
    end = max((rest.end for rest in watcher.between.rests if rest.is_last), default=0)
    return ProgramAccount(run.session.recorder.trace.on_card(card), device, command, steps, end)
