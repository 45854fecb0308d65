"""A virtual GPU for code that says `cuda`: everything between entering and leaving runs on it.

with forerun.virtual_cuda("t4") as gpu:
    model = build().cuda()
    train_one_step(model)
print(gpu.memory.peak_allocated_bytes, gpu.clock.seconds)
"""

import contextlib
import dataclasses
from collections.abc import Callable

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.forecasting.virtual_gpu import CardMemory
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import device as catalogue_device
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.trace import Phase, Trace
from forerun.virtual.cuda.session import CudaSession
from forerun.virtual.phases import recognising_phases


def clock_of(device: Device) -> Callable[[Trace, int, int], float]:
    """Seconds on `device` from one event of a trace to another, for `torch.cuda.Event.elapsed_time`."""
    costs = PriorCosts(device)
    return lambda trace, begin, end: (
        replay_clock(dataclasses.replace(trace, events=trace.events[begin:end], warm_from=0), costs).seconds
    )


class VirtualCuda:
    """CUDA as a program sees it, on the virtual twin of a card; from `virtual_cuda`."""

    def __init__(self, device: Device):
        self._device = device
        self._session = CudaSession(device, CardMemory(device), clock=clock_of(device))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "VirtualCuda":
        self._stack.enter_context(self._session)
        self._stack.enter_context(recognising_phases(self._session.recorder))
        self._stack.enter_context(self._session.recorder.phase(Phase.FORWARD, 0))
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
    def memory(self) -> MemoryReplay:
        """Peaks, breakdown and curve of what ran so far, in bytes."""
        return replay_memory(self.trace, workspace_bytes=workspace_bytes(self._device), passes=1)

    @property
    def clock(self) -> StepTime:
        """Time of what ran so far, in seconds."""
        return replay_clock(self.trace, PriorCosts(self._device, tf32=self.trace.tf32))


def virtual_cuda(name: str) -> VirtualCuda:
    """CUDA on a virtual GPU of the catalogue, as a context manager; out of memory is raised where the card would.

    Raises:
        UnknownDevice: no such GPU.
    """
    return VirtualCuda(catalogue_device(name))
