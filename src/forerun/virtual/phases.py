"""Backward passes and optimizer updates of a program that does not announce them, labelled in the trace."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.trace import Category, Phase
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder


def _in_phase(recorder: Recorder, phase: tuple[Phase, int], closure: Callable[..., Any]) -> Callable[..., Any]:
    """A closure of `step`: it is a forward and a backward pass, and no update. All of Lightning's steps have one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with recorder.phase(*phase):
            return closure(*args, **kwargs)

    return call


def own_alive(recorder: Recorder, storages: range) -> None:
    """Let what is alive of some storages and has no owner be other memory."""
    for index in recorder.alive() & set(storages):
        if recorder.trace.storages[index].owner is None:
            recorder.trace.storages[index].owner = Category.OTHER


class _LongLived:
    """What a program has on the card beside its steps: its data, averages of weights, a queue. It is no activation.

    It is there before the first backward pass, and still when an optimizer is stepped for the second time.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._storages = 0
        """How many there were before the first backward pass; negative once they are owned."""

    def before_pass(self) -> None:
        """A backward pass begins."""
        self._storages = self._storages or len(self._recorder.trace.storages)

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is stepped."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
        elif self._storages > 0:
            own_alive(self._recorder, range(self._storages))
            self._storages = -1


@contextlib.contextmanager
def recognising_phases(recorder: Recorder) -> Iterator[None]:
    """Label backward passes and optimizer updates of a program that does not announce them."""
    originals: dict[str, Callable[..., Any]] = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}
    running: list[contextlib.AbstractContextManager[None]] = []
    long_lived = _LongLived(recorder)

    def labelled(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            long_lived.before_pass()
            with recorder.phase(Phase.BACKWARD, 0):
                result = original(*args, **kwargs)
            recorder.own_gradients()
            recorder.raise_postponed()
            return result

        return call

    def begin(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        long_lived.before_update(optimizer)
        outside = recorder.current_phase, recorder.current_micro_step
        running.append(recorder.phase(Phase.OPTIMIZER))
        running[-1].__enter__()

        def as_outside(value: Any) -> Any:
            return _in_phase(recorder, outside, value) if callable(value) else value

        return tuple(map(as_outside, args)), {name: as_outside(value) for name, value in kwargs.items()}

    def end(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        running.pop().__exit__(None, None, None)
        state = (value for values in optimizer.state.values() for value in values.values())
        recorder.own((value for value in state if isinstance(value, torch.Tensor)), Category.OPTIMIZER_STATE)

    hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    # a pipeline's schedule calls it by itself, after the last backward pass
    # (torch/distributed/pipelining/stage.py, 2.13)
    reduce_gradients = FSDPParamGroup.post_backward

    def reduce(group: FSDPParamGroup, *args: Any) -> Any:
        is_inside = recorder.current_phase is Phase.BACKWARD
        with recorder.phase(Phase.BACKWARD, recorder.current_micro_step):
            result = reduce_gradients(group, *args)
        if not is_inside:
            recorder.own_gradients()
            recorder.raise_postponed()
        return result

    with contextlib.ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        for name, original in originals.items():
            stack.enter_context(replaced(torch.autograd, name, labelled(original)))
        stack.enter_context(replaced(FSDPParamGroup, "post_backward", reduce))
        yield
