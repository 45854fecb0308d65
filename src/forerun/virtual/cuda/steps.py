"""Optimizer steps of a program that announces nothing: where each begins and ends in the trace, and when to stop.

A step ends when the optimizer that was stepped first is stepped again: programs with several optimizers, accumulation
or a loss scaler need no hook. A younger one for the same parameters takes its place. Where no optimizer is stepped, a
step ends with what writes into trained tensors after a backward pass (`hand_updates.py`). Two steps are alike when they
issue the same operators in the same order. A script may train more than once (`later_loops.py`): each of its training
loops has steps of its own.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.trace import Category
from forerun.virtual.cuda.cuda_graphs import AFTER_UPDATE
from forerun.virtual.cuda.enough_steps import MOST_STEPS, ProgramStopped, first_warm, is_enough
from forerun.virtual.cuda.gradient_passes import counts_of
from forerun.virtual.cuda.hand_updates import HandUpdates, Progress
from forerun.virtual.cuda.length import find_length
from forerun.virtual.cuda.lines import line_of_pass, program_line
from forerun.virtual.cuda.loaders import LoaderWatch
from forerun.virtual.cuda.loop_rests import RestWatch, finish_scalers
from forerun.virtual.cuda.loop_stages import LoopStages
from forerun.virtual.cuda.records import Stage, StepSpan, TrainingLoop, counted, work_between
from forerun.virtual.cuda.repeated_calls import RepeatedCalls
from forerun.virtual.cuda.repeated_micro_batches import RepeatedMicroBatches
from forerun.virtual.cuda.shadow import tensors_in
from forerun.virtual.cuda.trained_parameters import UpdatedParameters, own_parameters, still_without_gradient
from forerun.virtual.cuda.trainer_lengths import ProgramLength
from forerun.virtual.cuda.update_parts import OtherUpdates, UpdateParts
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder

MOST_SECONDS_BETWEEN = 60.0
"""Of the processor, between two training loops: evaluations in full, say. Then the program is stopped there."""


@dataclass
class StepWatcher:
    """Follows the optimizers of a program and stops it when its steps repeat."""

    recorder: Recorder
    allocated_bytes: Callable[[], int]
    loaders: LoaderWatch
    most_steps: int | None = None
    """Stop after so many steps; None: when they repeat."""
    is_announced: bool = False
    """The caller says where a step ends, by `end_step`; optimizers end none, and the last step is the warm one."""
    plays_repeats: bool = True
    """Play calls that repeat instead of running them; a program that is not stopped may count them."""
    spans: list[StepSpan] = field(default_factory=list)
    earlier: list[TrainingLoop] = field(default_factory=list)
    """Training loops before the one that is running."""
    updated: UpdatedParameters = field(default_factory=UpdatedParameters)
    between: RestWatch = field(default_factory=RestWatch)
    """What the program does between passes of the loop that is running."""
    stages: LoopStages = field(default_factory=LoopStages)
    """Turns of a loop from which on it does something else."""
    _stage: Stage = Stage()
    """That of the loop that is running."""
    loop_counts: dict[str, int] = field(default_factory=dict)
    """Turns of loops of the program's script that were counted when they began, by file and line."""
    saved_bytes: Callable[[], int] = int
    """What the program has saved so far."""
    note: Callable[[str, Any], None] = lambda what, answer: None
    """Told what was answered in place of what nobody can know."""
    program_length: ProgramLength | None = None
    without_gradient: list[torch.nn.Parameter] = field(default_factory=list)
    """Parameters that the last step should have updated and that had no gradient."""
    step_line: str = ""
    """File and line that stepped the optimizer last."""
    passes: list[Progress] = field(default_factory=list)
    """How far it had come after each backward pass before the first update (`gradient_passes.py`)."""
    _anchor: ref[torch.optim.Optimizer] | None = None
    """The optimizer that ends a step. Another one may have its identity once it is gone."""
    _anchored: frozenset[int] = frozenset()
    """Identities of its parameters."""
    _made_after: WeakKeyDictionary[torch.optim.Optimizer, int] = field(default_factory=WeakKeyDictionary)
    """How many steps there were when each optimizer was made."""
    _parts: UpdateParts = field(default_factory=UpdateParts)
    _others: OtherUpdates = field(default_factory=OtherUpdates)
    _saved_before: int = 0
    """What the program had saved when the last step ended."""
    _loop_began: float | None = None
    """Seconds of the processor when a later loop was awaited; None: its first step is there."""
    _begin: int = 0
    _depth: int = 0
    _calls: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Calls, samples and tokens of each outermost module in the step so far."""
    _backward_lines: list[str] = field(default_factory=list)
    _backward_depth: int = 0
    _are_gradients_cleared: bool = False
    """By the program, since the last backward pass."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _keeps_gradients: bool = True
    """Whether there were any when the last step began its first forward pass."""

    def __enter__(self) -> "StepWatcher":
        self._follow()
        for owner, name, watching in (
            (torch.nn.Module, "__call__", self._counting),
            (torch.autograd, "backward", self._noting_line),
            (torch.optim.Optimizer, "zero_grad", self._noting_clearing),
            (torch.nn.Module, "zero_grad", self._noting_clearing),
            (torch.optim.Optimizer, "__init__", self._noting_age),
        ):
            self._stack.enter_context(replaced(owner, name, watching(getattr(owner, name))))
        for hook in (register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)):
            self._stack.callback(hook.remove)
        AFTER_UPDATE.append(self._end_or_stop)
        self._stack.callback(AFTER_UPDATE.remove, self._end_or_stop)
        self.stages.follow(lambda: self.loop, lambda: self.between.has_ended, self._next_stage, self._end_rest)
        self.stages.counters.steps = lambda: len(self.spans) + sum(len(each.spans) for each in self.earlier)
        return self

    def _follow(self) -> None:
        """Begin with a training loop of which nothing is known."""
        self._repeats, self._micro_batches = RepeatedCalls(self.recorder), RepeatedMicroBatches(self.recorder)
        self._by_hand = HandUpdates(self.recorder, self._progress)
        if not self.is_announced:
            self.recorder.on_write = self._note_writes

    def next_loop(self) -> bool:
        """Begin with another training loop of the program; False where a stated number of steps was seen."""
        if self.most_steps is not None or not self.spans:
            return False
        self._end_rest(has_step=False)
        earlier, loop = self.loop.joined(self.earlier)
        self.earlier, self._stage = [*earlier, loop], Stage()
        self.spans, self.program_length, self._anchor, self._anchored = [], None, None, frozenset()
        self._made_after.clear()
        self._begin, self._calls, self._backward_lines = len(self.recorder.trace.events), {}, []
        self._others, self._loop_began, self.between = OtherUpdates(), time.process_time(), self.between.of_next_loop()
        self._follow()
        return True

    def _next_stage(self, stage: Stage) -> None:
        """Begin with the next stage of a loop, behind one."""
        stage, left = self._stage.split(stage)
        if self.spans:
            self._stage = stage
            self.next_loop()
        self._stage = left  # turns without a step have no part in it

    @property
    def loop(self) -> TrainingLoop:
        """The training loop that is running, as far as it has come."""
        return TrainingLoop(self.spans, self.warm_from, self.program_length, self.step_line, self.between, self._stage)

    @property
    def awaits_loop(self) -> bool:
        """Whether a training loop is over and the next one has not made a step."""
        return bool(self.earlier) and not self.spans

    def _end_last_loop(self) -> None:
        """Where no step followed the last loop that made some, it is the program's last."""
        if self.awaits_loop:
            last = self.earlier.pop()
            self.spans, self.program_length, self.between = last.spans, last.length, last.between
            self.step_line, self._stage = last.line, last.stage.plus(self._stage)
        self.earlier, loop = self.loop.joined(self.earlier)
        self._stage, self.between, self.program_length = loop.stage, loop.between, loop.length
        self.earlier = [each.with_rests_of(loop) for each in self.earlier]

    def goes_on_behind(self, line: str) -> bool:
        """Whether the loop at a line is ended here, now that its steps repeat, and the program goes on behind it."""
        if self.most_steps is not None or not self.spans or self.awaits_loop:
            return False
        if not self.between.begin(line, len(self.recorder.trace.events), self.saved_bytes()):
            return False
        finish_scalers(self.recorder.trace)
        self._others.is_awaited = False
        if not self._keeps_gradients:  # the program clears them after each update, and its loop was ended before that
            self.updated.clear_gradients()
        return True

    def loop_begins(self, line: str) -> None:
        """The loop at a line begins, which trains: maybe once more, behind what the program did after its last turn."""
        self.between.starts.note(line, self._progress(), self.saved_bytes(), max(self._begin, self._others.turn_begin))

    def _end_rest(self, *, has_step: bool = False) -> None:
        events, fetched, turn = len(self.recorder.trace.events), self.loaders.fetched, self._others.turn_begin
        self.between.end(events, self.saved_bytes(), has_step=has_step, fetched=fetched, turn_begin=turn)

    def __exit__(self, *exception: object) -> None:
        self._end_hand_step()
        self._end_rest(has_step=False)
        self._end_last_loop()
        self.recorder.on_write = None
        self._stack.close()

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Counts samples and tokens of the outermost calls that train: the first dimensions of what they are given."""

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_late = self._loop_began is not None and time.process_time() - self._loop_began > MOST_SECONDS_BETWEEN
            if is_late or (self._depth == 0 and self.between.ends_program()):
                raise ProgramStopped
            if self._depth == 0 and self._backward_depth == 0 and torch.is_grad_enabled():
                if not self._calls:
                    self._keeps_gradients = self.updated.have_gradients
                self._calls[id(module)] = counted(self._calls.get(id(module)), [*args, *kwargs.values()])
            self._depth += 1
            try:
                if self._depth == 1 and self._backward_depth == 0 and self.plays_repeats:
                    play = self._micro_batches if torch.is_grad_enabled() else self._repeats
                    return play(original, module, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _noting_line(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._backward_depth == 0:  # reentrant checkpointing makes backward passes within one
                if self._end_hand_step():
                    self._stop()
                if self._begins_gradients():
                    self._backward_lines.clear()
                self._backward_lines.append(line_of_pass())
                self.between.starts.last_pass = len(self.recorder.trace.events)
                roots = args[0] if args else kwargs["tensors"]
                self._micro_batches.backward_begins([roots] if isinstance(roots, torch.Tensor) else roots)
            self._backward_depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                if self._backward_depth == 0:
                    self._micro_batches.backward_is_over()
                    self._by_hand.backward_is_over()
                    if not self.spans and not self.earlier:
                        self.passes.append(self._progress())

        return backward

    def _begins_gradients(self) -> bool:
        """Whether a backward pass that begins adds to no earlier gradient: SAM's second look, or another network's."""
        is_cleared, self._are_gradients_cleared = self._are_gradients_cleared, False
        return is_cleared or (bool(self.updated) and not self.updated.have_gradients)

    def _noting_clearing(self, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            original(owner, *args, **kwargs)
            self._are_gradients_cleared = True

        return zero_grad

    def _noting_age(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._made_after[optimizer] = len(self.spans)

        return init

    def _ends_steps(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is the optimizer that was stepped first, or one that was made since and takes its place."""
        if not self._is_anchor(optimizer):
            updated = frozenset(id(parameter) for group in optimizer.param_groups for parameter in group["params"])
            is_new = self._made_after.get(optimizer, 0) == len(self.spans) > 0
            is_heir = is_new and (updated == self._anchored or self.between.is_open)  # the next fold has another model
            has_failed = self._anchor is not None and self._anchor() is None and not self.spans  # out of memory, say
            is_other = self._anchor is not None and not is_heir and not has_failed
            if is_other and not (self._others.are_too_many() and self.next_loop()):  # then another loop has begun
                return False
            self._anchor, self._anchored = ref(optimizer), updated
        self._others.next_step()
        return True

    def _is_anchor(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._anchor is not None and self._anchor() is optimizer

    def count_graph(self, graph: int, inputs: list[torch.Tensor]) -> None:
        """The same of a compiled function outside of modules; its data are what it is given and does not train."""
        if self._depth == self._backward_depth == 0 and any(tensor.requires_grad for tensor in inputs):
            data = [tensor for tensor in inputs if not tensor.requires_grad]
            self._calls[graph] = counted(self._calls.get(graph), [each for each in data if each.dim() > 1] or data)

    @property
    def warm_from(self) -> int:
        """Number of the first step that is like the last one: what is before warms up."""
        return max(0, len(self.spans) - 1) if self.is_announced else first_warm(self.spans, self.between.branches)

    def _note_writes(self, tensors: list[torch.Tensor]) -> None:
        """Updates are made by the program itself: what modules and backward passes write are their own buffers."""
        if self._depth == 0 and self._backward_depth == 0:
            self._by_hand.note(tensors)

    def _progress(self) -> Progress:
        """How far the step has come."""
        events, fetched = len(self.recorder.trace.events), len(self.loaders.fetched)
        return Progress(events, dict(self._calls), fetched, self.allocated_bytes(), program_line())

    def _end_hand_step(self) -> bool:
        """End a step that was made without an optimizer; returns whether enough were seen."""
        progress = self._by_hand.take() if self.recorder.on_write is not None else None
        if progress is not None:
            self.own_parameters()
            self.step_line = progress.line
            self.end_step(progress)
        return progress is not None and self._is_enough()

    def _before(self, optimizer: torch.optim.Optimizer, *call: Any) -> None:
        if self._anchor is None and not self.is_announced:
            self.recorder.on_write = None  # what was written before is no step: an optimizer makes them
            self.spans.clear()
        is_anchor = not self.between.branches.trains_seldom and self._ends_steps(optimizer)
        if not self.spans:
            self.own_parameters()
        self.updated.take(optimizer, self.recorder)
        if is_anchor:
            self.without_gradient, self.step_line = [], program_line()
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if next(tensors_in(call), None) is None:  # DeepSpeed's LAMB is given its gradients
            self.without_gradient += self.updated.never_reached(updated)
        self.recorder.own((each.grad for each in updated if each.grad is not None), Category.GRADIENT)

    def own_parameters(self) -> None:
        """Find every parameter on the device, those that nothing updates included."""
        own_parameters(self.recorder, self._by_hand.states)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.without_gradient = still_without_gradient(self.recorder, self.without_gradient)
        if self.between.branches.trains_seldom:
            return
        if not self._is_anchor(optimizer) and self._others.end_turn(len(self.recorder.trace.events)):
            self._stop()
        if self._is_anchor(optimizer) and self._parts.is_whole(self.spans, self._backward_lines, self._calls):
            self._end_or_stop()

    def _end_or_stop(self) -> None:
        """End a step, and the program where enough were seen."""
        if self.is_announced:
            return
        self.without_gradient = still_without_gradient(self.recorder, self.without_gradient)
        self.end_step()
        is_over = self._is_enough() and (self.most_steps or not self.between.turns_again(self._begin))
        if is_over and not self._others.awaits():
            self._stop()

    def _stop(self) -> None:
        """End the innermost loop, and the program where there is none around it, unless another stage of it follows."""
        if self.most_steps is not None or not self.stages.goes_on():
            raise ProgramStopped

    def end_step(self, progress: Progress | None = None) -> None:
        """End a step here, or where `progress` says: what came after is the next one's."""
        if self.is_announced and not self.spans:
            self.own_parameters()
        later = self._progress()
        progress = later if progress is None else progress
        if self.between.is_open:  # one more step like those before, behind what the program does between them
            self._end_rest(has_step=True)
            here = self.spans[-1].repeated(self.loaders.take(progress.fetched), self._backward_lines)
            if self.program_length is None:  # the counter of a `while` loop around others has risen
                self.program_length = self._length_at(self.spans[-1], "", has_turned=True)
            self.program_length = self.between.others.counted(self.program_length, lambda: self._length_at(here, ""))
            self._begin, self._calls, self._backward_lines = progress.events, later.calls_since(progress), []
            return
        calls_behind = later.calls_since(progress)
        if (start := self.between.starts.take(progress.events)) is not None:  # what was done before the loop is no step
            self.between.note_whole(start, self._begin, self._saved_before)
            self._begin, progress = start.progress.events, start.rest_of(progress)
            self.loaders.take(start.progress.fetched)
        end, self._loop_began = progress.events, None
        samples, tokens = counts_of(progress.calls)
        fetched, lines = tuple(self.loaders.take(progress.fetched, are_of_step=True)), tuple(self._backward_lines)
        if not samples:  # of a program whose model is no module, or one of Keras
            samples = sum(loader.rows for loader in fetched)
            samples = samples or (self.spans[-1].samples if self.spans else 0)  # a CUDA graph of the same step
        work, allocated_bytes = work_between(self.recorder.trace, self._begin, end), progress.allocated_bytes
        turn = max(self._begin, self._others.turn_begin)
        saved = self.saved_bytes() - (self._saved_before if start is None else start.saved_bytes)
        span = StepSpan(self._begin, end, work, allocated_bytes, samples, tokens, fetched, lines, turn, saved)
        self.spans.append(span)
        self.between.step_ends()
        self._begin, self._calls, self._backward_lines = end, calls_behind, []
        self._saved_before = self.saved_bytes()
        if not self.is_announced and (self.program_length is None or len(self.spans) <= 2):  # it is at an update now
            self.program_length = self._length_at(span, "" if progress is later else progress.line)

    def _length_at(self, span: StepSpan, update_line: str, *, has_turned: bool = False) -> ProgramLength | None:
        loaders, branches = span.turns_of_loaders, self.between.branches
        return find_length(
            span.batches, span.backward_lines, update_line, loaders | self.loop_counts, self.between.counters, loaders,
            branches.turns_of_a_step, batches_by_pass=span.batches_by_pass, has_turned=has_turned,
            has_repeated=len(self.spans) > 2 and not has_turned,
        )  # fmt: skip

    def _is_enough(self) -> bool:
        if most := self.most_steps or self.between.branches.steps_to_see(MOST_STEPS):
            return len(self.spans) >= most
        return is_enough(self.spans, operators=len(self.recorder.trace.ops))
