"""Optimizer steps of a program that announces nothing: where each begins and ends in the trace, and when to stop.

A step ends when the optimizer that was stepped first is stepped again: programs with several optimizers, accumulation
or a loss scaler need no hook. Two steps are alike when they issue the same operators in the same order.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.step.parallel import local
from forerun.trace import OP, Category
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.recorder import Recorder, calling_line

ALIKE = 2
"""Steps in a row that must be alike before the program is stopped."""
STEPS_OF_GROWTH = 5
"""Steps that are seen of a program whose memory grows: enough to tell that it goes on."""
SAME_WORK = 1e-3
"""Relative difference of work between steps that are alike."""
MOST_STEPS = 12
"""A program whose steps never repeat, such as one with rows of all lengths, is stopped after so many."""


class ProgramStopped(BaseException):
    """Enough steps were seen. No `Exception`: a program's own handlers must not take it for a fault."""


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

    def is_like(self, other: "StepSpan") -> bool:
        """Whether both do the same work: a step that logs reads a number more."""
        return all(abs(a - b) <= SAME_WORK * max(a, b) for a, b in zip(self.work, other.work, strict=True))


@dataclass
class StepWatcher:
    """Follows the optimizers of a program and stops it when its steps repeat."""

    recorder: Recorder
    allocated_bytes: Callable[[], int]
    most_steps: int | None = None
    """Stop after so many steps; None: when they repeat."""
    spans: list[StepSpan] = field(default_factory=list)
    parameters: dict[int, torch.nn.Parameter] = field(default_factory=dict)
    """Those that the program's optimizers update."""
    program_length: "ProgramLength | None" = None
    without_gradient: list[torch.nn.Parameter] = field(default_factory=list)
    """Parameters that the last step should have updated and that had no gradient."""
    step_line: str = ""
    """File and line that stepped the optimizer last."""
    _anchor: int | None = None
    _begin: int = 0
    _depth: int = 0
    _calls: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Calls, samples and tokens of each outermost module in the step so far."""

    def __enter__(self) -> "StepWatcher":
        self._call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self._counting(self._call)  # type: ignore[method-assign]
        self._hooks = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]
        return self

    def __exit__(self, *exception: object) -> None:
        torch.nn.Module.__call__ = self._call  # type: ignore[method-assign]
        for hook in self._hooks:
            hook.remove()

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Counts samples and tokens of the outermost calls that train: the first dimensions of what they are given."""

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and module.training and torch.is_grad_enabled():
                self._count(
                    id(module), [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
                )
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _count(self, module: int, inputs: list[torch.Tensor]) -> None:
        rows = [tensor for tensor in inputs if tensor.dim() > 0]
        ids = [tensor for tensor in rows if tensor.dim() == 2 and not tensor.is_floating_point()]
        calls, samples, tokens = self._calls.get(module, (0, 0, 0))
        samples += rows[0].shape[0] if rows else 0
        self._calls[module] = calls + 1, samples, tokens + (ids[0].numel() if ids else 0)

    @property
    def samples_per_step(self) -> float:
        """Mean over the warm steps."""
        warm = self.spans[self.warm_from :] if self.spans else []
        return sum(span.samples for span in warm) / max(1, len(warm))

    @property
    def tokens_per_step(self) -> float:
        """Mean over the warm steps, padding included; 0 where no ids are given to the model."""
        warm = self.spans[self.warm_from :] if self.spans else []
        return sum(span.tokens for span in warm) / max(1, len(warm))

    @property
    def warm_from(self) -> int:
        """Number of the first step that is like the last one: what is before warms up."""
        alike = [number for number, span in enumerate(self.spans) if span.is_like(self.spans[-1])]
        return alike[0] if len(alike) > 1 else min(1, len(self.spans) - 1)

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._anchor is None:
            self._anchor = id(optimizer)
        fresh = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in self.parameters
        ]
        if not self.spans:
            self.own_parameters()
        if fresh:
            self.parameters.update({id(parameter): parameter for parameter in fresh})
            self.recorder.own(fresh, Category.PARAMETER)
        if id(optimizer) == self._anchor:
            self.without_gradient, self.step_line = [], calling_line()
        self.without_gradient += [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.grad is None
        ]
        gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
        self.recorder.own((gradient for gradient in gradients if gradient is not None), Category.GRADIENT)

    def own_parameters(self) -> None:
        """Find every parameter on the device, those that nothing updates included."""
        tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
        every = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
        placed = [parameter for parameter in every if is_virtual(local(parameter))]
        self.recorder.own(placed, Category.PARAMETER)
        trace = self.recorder.trace
        trace.total_parameters = sum(parameter.numel() for parameter in placed)
        trace.trainable_parameters = sum(parameter.numel() for parameter in placed if parameter.requires_grad)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) != self._anchor:
            return
        trace, end = self.recorder.trace, len(self.recorder.trace.events)
        calls = [trace.calls[trace.ops[index].call] for kind, index in trace.events[self._begin : end] if kind == OP]
        work = sum(c.flops for c in calls), sum(c.bytes_read + c.bytes_written for c in calls if not c.is_view)
        _calls, samples, tokens = min(self._calls.values(), default=(0, 0, 0))  # a discriminator is called more often
        self.spans.append(StepSpan(self._begin, end, work, self.allocated_bytes(), samples, tokens))
        self._begin, self._calls = end, {}
        if self.program_length is None or len(self.spans) == 1:
            self.program_length = find_length()
        if self._is_enough():
            raise ProgramStopped

    def _is_enough(self) -> bool:
        if self.most_steps is not None:
            return len(self.spans) >= self.most_steps
        last = self.spans[-ALIKE - 1 :]  # the first step prepares: it makes the optimizer's state
        if len(last) > ALIKE and all(span.is_like(last[-1]) for span in last[1:]):
            is_growing = last[-1].allocated_bytes > last[-2].allocated_bytes
            return not is_growing or len(self.spans) >= STEPS_OF_GROWTH
        return len(self.spans) >= MOST_STEPS


@dataclass(frozen=True)
class ProgramLength:
    """How many optimizer steps the program will make in all, and who says so."""

    steps: int
    source: str


def find_length() -> ProgramLength | None:
    """Ask the trainer whose loop is running; None where there is none that knows."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        state = getattr(owner, "state", None) if type(owner).__module__.startswith(("transformers.", "trl.")) else None
        steps = getattr(state, "max_steps", 0)
        if isinstance(steps, int) and steps > 0:
            return ProgramLength(steps, "the Trainer's max_steps")
        trainer = getattr(owner, "trainer", None) if "lightning" in type(owner).__module__ else None
        if trainer is not None and hasattr(trainer, "estimated_stepping_batches"):
            batches = trainer.estimated_stepping_batches
            if isinstance(batches, int) and batches > 0:
                return ProgramLength(batches, "Lightning's estimated_stepping_batches")
        frame = frame.f_back
    return None
