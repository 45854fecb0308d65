"""A virtual GPU in use as a context manager: what ran on it so far, in memory, time, findings and assumptions.

Everything between entering and leaving counts. Backward passes, optimizer updates and steps are recognised by
themselves. A program that needs more than the card has gets `torch.OutOfMemoryError` where it would on the card, unless
the card is without limit.
"""

import contextlib
import sys
import time
from typing import Self

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.forecasting.live_card import clock_of, memory_of
from forerun.forecasting.program import ProgramForecast, forecast_run
from forerun.hardware.catalogue import Device
from forerun.memory.card import CardReplay, replay_on_card
from forerun.memory.overhead import workspace_bytes
from forerun.memory.reductions import sized_for
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.trace import Trace
from forerun.virtual.cuda.compile_calls import CompileCalls
from forerun.virtual.cuda.run import ProgramRun, host_peak_bytes, in_use, watcher_of
from forerun.virtual.cuda.session import CudaSession


class VirtualCard:
    """The virtual twin of the GPU `row`, or of `gpus` of them that one process drives; to enter and leave once."""

    def __init__(self, row: Device, attention: str = "auto", *, is_limited: bool = True, gpus: int = 1):
        self.row = row
        card = memory_of(row, gpus, is_limited=is_limited)
        self._session = CudaSession(row, card, clock=clock_of(row), attention=attention, cards=gpus)
        self._watcher = watcher_of(self._session, most_steps=sys.maxsize)
        self._watcher.plays_repeats = False
        self._stack = contextlib.ExitStack()
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        self._stack.enter_context(in_use(self._session, self._watcher))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        return self._session.recorder.trace

    @property
    def assumed(self) -> list[str]:
        """Values of the device that nobody can know and what was answered, one sentence for each line that asked."""
        entries = self._session.assumptions.by_line.values()
        return [f"{entry.line}: {entry.what}, answered with {entry.value}" for entry in entries]

    @property
    def compiling(self) -> CompileCalls:
        """What `torch.compile` captured so far."""
        return self._session.compiling

    @property
    def compiled_eagerly(self) -> dict[str, str]:
        """Functions that were to be compiled and run as they are written, each with the reason."""
        return self._session.compiling.eager

    @property
    def memory(self) -> MemoryReplay:
        """Peaks, breakdown and curve of what ran so far, in bytes; of several cards that which needs most."""
        blocks, trace = workspace_bytes(self.row), sized_for(self.trace, self.row)
        replays = [
            replay_memory(trace.on_card(number), workspace_bytes=blocks, passes=1) for number in range(trace.cards)
        ]
        return max(replays, key=lambda replay: replay.peak_allocated_bytes)

    @property
    def card(self) -> CardReplay:
        """What ran so far on the whole card: does it fit, and what would the driver show, in bytes.

        Of several cards that which needs most.
        """
        return max(self.cards, key=lambda card: card.device_bytes.expected)

    @property
    def cards(self) -> list[CardReplay]:
        """The same of each card."""
        trace = self.trace
        return [replay_on_card(trace.on_card(number), self.row, passes=1) for number in range(trace.cards)]

    @property
    def clock(self) -> StepTime:
        """Time of what ran so far, in seconds."""
        return replay_clock(self.trace, PriorCosts.of(self.trace, self.row))

    @property
    def forecast(self) -> ProgramForecast:
        """What `forerun exec` says of a program that did what ran so far, with warnings, findings and assumptions."""
        session = self._session
        run = ProgramRun(
            session, self._watcher, 0, time.perf_counter() - self._start, host_peak_bytes(), 0,
            list(session.assumptions.by_line.values()), None,
        )  # fmt: skip
        return forecast_run(run, self.row, [type(self).__name__], 1, None, None)
