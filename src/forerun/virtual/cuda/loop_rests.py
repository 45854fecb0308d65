"""What a program does between two passes of its training loop: evaluation, checkpoints, another network's rollouts.

A rest begins where the innermost loop was ended (`script_loops.py`) and ends with the next optimizer step, or with the
program. Of a long one the pass over a data loader, or a loop that does not train (`rest_turns.py`), is cut: the share
of its batches or turns that were seen stands for all, and the program goes on behind it, where its checkpoint is. Where
nothing can be cut, the program is ended.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forerun.trace import Trace
from forerun.virtual.cuda.branch_conditions import BEST
from forerun.virtual.cuda.grown_models import GrownModels
from forerun.virtual.cuda.loaders import WatchedLoader
from forerun.virtual.cuda.loop_counters import LoopCounters
from forerun.virtual.cuda.loop_starts import LoopStart, LoopStarts
from forerun.virtual.cuda.other_loops import OtherLoops
from forerun.virtual.cuda.rest_turns import TURNS, RestTurns
from forerun.virtual.cuda.run_end import RunEnd
from forerun.virtual.cuda.turn_branches import (
    CYCLE,
    IS_OVER,
    OF_LOOP,
    OF_UPDATE,
    RARELY,
    REMAINDER,
    TAKES,
    BranchMoment,
    TurnBranches,
)
from forerun.virtual.live_objects import live_objects

IS_BEST = "whether it is better than all before"
"""What is assumed where a branch keeps the best."""
EXTRA_TURN = ""
"""In place of a loop's line: the loop goes on."""
MOST_SECONDS = 6.0
"""Of the processor that one rest may take here; evaluation over many rows is cut then."""
MOST_STEP_SECONDS = 60.0
"""Of a step at its end."""
UNSCALES = "_amp_foreach_non_finite_check_and_unscale"
"""The operator of a loss scaler."""
ENDED_AFTER = 1.5
"""Times as long, where nothing could be cut."""
PASSING = 4.0
"""Times as long again within a batch of a pass, which is cut at the next one: answers that are generated take long."""


@dataclass(frozen=True)
class LoopRest:
    """The events of the trace from `begin` to `end`, which follow each pass of the loop at `line`."""

    line: str
    """File and line of the loop after which it comes."""
    begin: int
    end: int
    has_step: bool
    """An optimizer step is at its end, which is no part of the rest."""
    saved_bytes: int
    """Of checkpoints that were written in it."""
    turn_begin: int = 0
    """Event behind the last update of another optimizer before that step."""
    is_last: bool = False
    """It is what follows the last loop."""


@dataclass(frozen=True)
class Cut:
    """A loop or a pass over data between two events of the trace, of which only a share was run here."""

    begin: int
    end: int
    share: float


@dataclass
class RestWatch:
    """The rests of one training loop, as they are reached."""

    rests: list[LoopRest] = field(default_factory=list)
    is_open: bool = False
    """A loop was ended, and the next step has not come."""
    branches: TurnBranches = field(default_factory=TurnBranches)
    """What is done in some turns of the loops only."""
    starts: LoopStarts = field(default_factory=LoopStarts)
    counters: LoopCounters = field(default_factory=LoopCounters)
    """Of the loops around the steps."""
    others: OtherLoops = field(default_factory=OtherLoops)
    grown: GrownModels = field(default_factory=GrownModels)
    cuts: list[Cut] = field(default_factory=list)
    """What was ended early, in one another too."""
    ended_at: str = ""
    """Line of the loop or branch in whose rest the program was ended."""
    whole: dict[str, LoopRest] = field(default_factory=dict)
    """By line of a loop that came to its end within the steps, what the program did behind its last turn then."""
    _ended: set[str] = field(default_factory=set)
    end_of_run: RunEnd = field(default_factory=RunEnd)
    _line: str = ""
    _begin: tuple[int, int] = (0, 0)
    _began: float = 0.0
    _passes: dict[int, int] = field(default_factory=dict)
    """Events with which passes over data began, by the identity of their loader."""
    _is_passing: bool = False
    """Over batches of a loader whose number is known."""
    _branch_began: float = math.inf
    """Where what a branch does may be ended early."""
    _is_last_batch: bool = False
    """A loop was ended in a batch of a pass."""
    _step_ended: float | None = None
    _step_seconds: float = 0.0
    """Of the processor that the last step took here: the next one is at the end of a rest."""

    def __post_init__(self) -> None:
        self.turns = RestTurns(lambda: self.is_too_long, self._cuts_turns)

    def of_next_loop(self) -> "RestWatch":
        """That of another training loop of the program."""
        return RestWatch(others=self.others.of_next_loop())

    def step_ends(self) -> None:
        """A step is over that is no part of a rest."""
        self.others.note_step()
        now = time.process_time()
        if self._step_ended is not None:
            self._step_seconds = min(now - self._step_ended, MOST_STEP_SECONDS)
        self._step_ended = now

    def turns_again(self, event: int) -> bool:
        """Whether the innermost loop makes one more turn, which is no step, for branches that were not taken."""
        return self.branches.waits() and self.begin(EXTRA_TURN, event, 0)

    def begin(self, line: str, event: int, saved_bytes: int) -> bool:
        """A loop could be ended at an event of the trace; returns whether it is: each once, and one at a time."""
        if self.is_open and self._line == EXTRA_TURN:
            self.is_open = False
        if self.is_open or line in self._ended:
            return False
        self._ended.add(line)
        self._line, self.is_open = line, True
        self._begin, self._began = (event, saved_bytes), time.process_time()
        self._is_last_batch = self._is_passing = False
        self._passes.clear()
        return True

    def note_whole(self, start: LoopStart, begin: int, saved_before: int) -> None:
        """A loop came to its end within the steps and begins anew; what is between began at an event of the trace."""
        if start.is_only:
            end, saved = start.progress.events, start.saved_bytes - saved_before
            self.whole[start.line] = LoopRest(start.line, begin, end, has_step=False, saved_bytes=saved)

    def cuts_pass(self, loader: WatchedLoader, fetched: list[WatchedLoader], event: int) -> bool:
        """Whether a pass over a loader, of which the rest has some batches, is ended at an event of the trace.

        What follows has its own time.
        """
        self._is_passing = bool(loader.batches)
        count = sum(each is loader for each in fetched)
        self._passes.setdefault(id(loader), event)
        if not count or not loader.batches or not (self.is_too_long or self._is_last_batch):
            return False
        self._is_last_batch = False
        self._note_cut(self._passes.pop(id(loader)), event, min(1.0, count / loader.batches))
        return True

    def _cuts_turns(self, begin: int, end: int, share: float) -> None:
        """A loop that does not train is ended."""
        self._is_last_batch = self._is_passing
        self._note_cut(begin, end, share)

    def _note_cut(self, begin: int, end: int, share: float) -> None:
        self._began = time.process_time()
        if self._branch_began < math.inf:
            self._branch_began = self._began
        if share < 1.0:
            self.cuts.append(Cut(begin, end, share))

    def branch_begins(self, *, is_warm: bool) -> None:
        """A branch is taken, which may take long; in a warm step that has it all of it is run."""
        self._branch_began = math.inf if is_warm and not self.is_open else time.process_time()
        self._is_passing = self._is_last_batch = False
        self._passes.clear()

    @property
    def has_ended(self) -> bool:
        """Whether one of the loops was ended."""
        return bool(self._ended - {EXTRA_TURN})

    @property
    def is_between_steps(self) -> bool:
        """Whether what runs is no part of a step that counts."""
        return self.is_open or (self.branches.is_open and self._branch_began < math.inf)

    @property
    def is_too_long(self) -> bool:
        """Whether it takes so long that it is cut."""
        began = self._began if self.is_open else self._branch_began if self.branches.is_open else math.inf
        return time.process_time() - began > MOST_SECONDS + self._step_seconds

    def ends_program(self) -> bool:
        """Whether it takes so long that the program is ended, asked before each call of a module.

        A pass over batches is rather cut at the next one.
        """
        self.turns.note_call()
        limit = (
            ENDED_AFTER * MOST_SECONDS * (PASSING if self._is_passing or self.turns.are_running else 1)
            + self._step_seconds
        )
        if not self.is_open or time.process_time() - self._began <= limit:
            return False
        self.ended_at = self._line or self.branches.open_line
        return True

    def cut_last_pass(self, fetched: Sequence[WatchedLoader], event: int) -> None:
        """The program was ended in a pass over the loader of the last batch."""
        last = fetched[-1] if fetched else None
        if last is not None and last.batches and (begin := self._passes.pop(id(last), None)) is not None:
            self._note_cut(begin, event, min(1.0, sum(each is last for each in fetched) / last.batches))

    def end(
        self, event: int, saved_bytes: int, *, has_step: bool, fetched: list[WatchedLoader], turn_begin: int = 0
    ) -> None:
        """The rest is over at an event; `fetched` is the loader of each batch that was made in it."""
        if not self.is_open:
            return
        if self.is_too_long and not has_step:
            self.cut_last_pass(fetched, event)
        (begin, before), self.is_open = self._begin, False
        if self.ended_at and self.ended_at in self.whole:  # it was seen to its end before
            self.rests.append(self.whole[self.ended_at])
            self.ended_at = ""
            return
        is_last, saved = self._line == self.end_of_run.line, saved_bytes - before
        if self._line != EXTRA_TURN:
            rest = LoopRest(self._line, begin, event, has_step, saved, turn_begin, is_last)
            self.rests.append(rest)


def branch_names(
    watch: Callable[[], RestWatch],
    now: Callable[[], BranchMoment],
    fetched: Callable[[], list[WatchedLoader]],
    note: Callable[[str, Any], None],
) -> dict[str, Any]:
    """What decides the branches of a marked module; `watch` gives that of the loop that is running.

    `fetched` has the loader of each batch of its step so far: those of a branch, such as an evaluation, are none of it.
    `note` is told what is answered where nobody can know.
    """

    def remainder(counter: Any, period: Any, residue: Any, line: str, *kinds: str, **trains: bool) -> Any:
        if OF_LOOP in kinds:
            watch().branches.of_loops.add(line)
        return watch().branches.remainder(line, counter, period, now().steps, residue, **trains)

    def cycle(counter: Any, period: Any, residue: Any, line: str, *kinds: str) -> Any:
        if not watch().is_open:
            trains = {"is_cycle": OF_UPDATE not in kinds, "is_update": OF_UPDATE in kinds}
            return remainder(counter, period, residue, line, *kinds, **trains)
        is_rare = watch().branches.is_rare(line)  # else it is a turn that is no step
        return remainder(counter, period, residue, line) if is_rare else counter % period

    def takes(is_due: Any, line: str, loop: str, *beside: Callable[..., Any]) -> bool:
        was_open = watch().branches.is_open
        is_taken = watch().branches.takes(is_due, line, loop, now(), *beside, is_extra=watch().is_open)
        if is_taken and not was_open:
            watch().branch_begins(is_warm=now().steps > 1)
            watch().grown.begin(line)
        return is_taken

    def rarely(is_due: Any, line: str, loop: str, *beside: Callable[..., Any]) -> Any:
        is_extra = watch().is_open and watch().branches.is_rare(line)
        return takes(is_due, line, loop, *beside) if is_extra else is_due

    def is_over(line: str) -> None:
        watch().grown.end(line)
        count, batches = watch().branches.is_over(line, now()), fetched()
        if count and watch().is_too_long:
            watch().cut_last_pass(batches[-count:], now().events)
        if count and not watch().is_open:  # how much of a rest was run shows by all of its batches
            del batches[-count:]

    return _names_beside(watch, now, note) | {
        REMAINDER: remainder,
        CYCLE: cycle,
        RARELY: rarely,
        TAKES: takes,
        IS_OVER: is_over,
    }


def _names_beside(
    watch: Callable[[], RestWatch], now: Callable[[], BranchMoment], note: Callable[[str, Any], None]
) -> dict[str, Any]:
    """What decides beside remainders: whether something is the best so far, and which turns a long loop makes."""

    def is_best(is_better: Any) -> bool:
        """Whether what is unknown is better than all before: in training it is, now and then."""
        if not is_better and now().steps > 0:
            note(IS_BEST, "yes, each time")
            return True
        return bool(is_better)

    def turns(values: Any) -> Any:
        if torch.compiler.is_compiling() or not watch().is_between_steps:
            return values
        return watch().turns.over(values, lambda: now().events)

    return {BEST: is_best, TURNS: turns}


def finish_scalers(trace: Trace) -> None:
    """Let loss scalers begin a step anew: the loop was ended inside of their `step`, and they were not updated."""
    if not any(UNSCALES in call.name for call in trace.calls):
        return  # to look for live ones takes 50 ms
    for scaler in live_objects(torch.amp.GradScaler):
        scaler._per_optimizer_states.clear()  # as its `update` does (torch/amp/grad_scaler.py, 2.13)
