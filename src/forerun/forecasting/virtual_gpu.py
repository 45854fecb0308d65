"""A virtual GPU for any PyTorch program: run it on `.device`, then read `.memory` and `.clock`.

    with forerun.virtual_gpu("a100-40gb") as gpu:
        model = build().to(gpu.device)
        model(torch.zeros(8, 512, dtype=torch.long, device=gpu.device)).sum().backward()
    print(gpu.memory.peak_allocated_bytes, gpu.clock.seconds)

Everything between entering and leaving counts as one step. Backward passes and optimizer updates are recognised by
themselves.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.clock.costs import DatasheetCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import device as catalogue_device
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.trace import Category, Phase, Trace
from forerun.virtual.recorder import Recorder
from forerun.virtual.session import VirtualSession


class VirtualGPU:
    """A virtual GPU in use, from `virtual_gpu`."""

    def __init__(self, device: Device, attention: str):
        self._device = device
        self._session = VirtualSession(device, attention)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "VirtualGPU":
        self._stack.enter_context(self._session)
        self._stack.enter_context(recognising_phases(self._session.recorder))
        self._stack.enter_context(self._session.recorder.phase(Phase.FORWARD, 0))
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.recorder.is_closed = True
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """The torch device to build on or move to."""
        return self._session.torch_device

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        return self._session.recorder.trace

    @property
    def memory(self) -> MemoryReplay:
        """Peaks, breakdown and curve of what ran so far, in bytes."""
        is_host = self._device.kind == "cpu"
        return replay_memory(self.trace, is_host=is_host, workspace_bytes=workspace_bytes(self._device), passes=1)

    @property
    def clock(self) -> StepTime:
        """Time of what ran so far, in seconds, at the datasheet's rates."""
        return replay_clock(self.trace, DatasheetCosts(self._device))


def virtual_gpu(name: str, *, attention: str = "auto") -> VirtualGPU:
    """A virtual GPU of the catalogue; use it as a context manager.

    Raises:
        UnknownDevice: no such GPU.
    """
    return VirtualGPU(catalogue_device(name), attention)


@contextlib.contextmanager
def recognising_phases(recorder: Recorder) -> Iterator[None]:
    """Label backward passes and optimizer updates of a program that does not announce them."""
    original: Callable[..., Any] = torch.autograd.backward
    running: list[contextlib.AbstractContextManager[None]] = []

    def backward(*args: Any, **kwargs: Any) -> Any:
        with recorder.phase(Phase.BACKWARD, 0):
            return original(*args, **kwargs)

    def begin(*_: Any) -> None:
        running.append(recorder.phase(Phase.OPTIMIZER))
        running[-1].__enter__()

    def end(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        running.pop().__exit__(None, None, None)
        state = (value for values in optimizer.state.values() for value in values.values())
        recorder.own((value for value in state if isinstance(value, torch.Tensor)), Category.OPTIMIZER_STATE)

    hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original
        for hook in hooks:
            hook.remove()
