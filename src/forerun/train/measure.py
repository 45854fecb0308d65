"""What a run really takes: seconds by phase, and peak memory as the device's own allocator accounts for it.

On a GPU the allocator's counters are read. On a CPU the bytes of tensors alive before a step (parameters, buffers,
optimizer state, batch) are added to the highest running sum of the allocations and frees that PyTorch's profiler
records inside the C++ allocator during one real step; and the peak resident set of the process is read from the kernel.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from forerun.records import MeasuredMemory, MeasuredStep, ParameterCounts, StepPhases, StepReport
from forerun.settings.schema import Settings
from forerun.step.parallel import local
from forerun.step.training_step import StepObserver, TrainingStep
from forerun.step.workload import Batch
from forerun.trace import Phase
from forerun.units import KIB, MILLI

CPU_METHOD = (
    "allocated: bytes of tensors alive before the step with the most padded tokens of an epoch, plus the peak of the "
    "running sum of allocations and frees in PyTorch's CPU allocator during it (profiler records); device: peak "
    "resident set of the process since training began (VmHWM)"
)
CUDA_METHOD = "allocated and reserved: torch.cuda peak counters; device: memory of this process as NVML reports it"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
T = TypeVar("T")


class PhaseTimer(StepObserver):
    """Seconds of each phase since the last `take`; on a GPU by events in its stream, so that the host never waits."""

    def __init__(self, device: str):
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event, int]] = []
        self._open: list[str] = []
        """Phases under way: the passes of a pipeline are phases inside that of its schedule."""

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Time one phase; what is inside a phase of its own does not count for the outer one."""
        name = f"{phase.value}_seconds"
        outer = self._open[-1] if self._open else ""
        signs = {} if outer == name else {name: 1, outer: -1} if outer else {name: 1}
        self._open.append(name)
        if self.device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            try:
                yield
            finally:
                end.record()
                self._open.pop()
                self._events.extend((own, begin, end, sign) for own, sign in signs.items())
            return
        start = self.now()
        try:
            yield
        finally:
            seconds = self.now() - start
            self._open.pop()
            for own, sign in signs.items():
                self.seconds[own] += sign * seconds

    def now(self) -> float:
        """Wall clock once the device has caught up."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def accepts(self, loss: torch.Tensor, norm: torch.Tensor | None) -> bool:
        """Whether loss and gradient are numbers: their sum is one only if both are, and is read at once."""
        return math.isfinite(float(loss if norm is None else loss + norm))

    def take(self, total: float) -> StepPhases:
        """Phases since the last call; what they leave of `total` is host time."""
        if self._events:
            torch.cuda.synchronize()
            for name, begin, end, sign in self._events:
                self.seconds[name] += sign * begin.elapsed_time(end) * MILLI
            self._events.clear()
        seconds = dict(self.seconds)
        self.seconds.clear()
        return StepPhases(**seconds, host_seconds=max(0.0, total - sum(seconds.values())))


def run_measuring_allocations(run: Callable[[], T], step: TrainingStep, batches: Sequence[Batch]) -> tuple[T, int]:
    """Run one real CPU step and return its result and its peak of allocated bytes; its numbers are unchanged."""
    alive = bytes_alive(step) + sum(t.numel() * t.element_size() for batch in batches for t in batch.values())
    profiler: Any = getattr(torch._C, "_profiler")  # noqa: B009 (private, without type stubs)
    autograd: Any = getattr(torch._C, "_autograd")  # noqa: B009
    # legacy profiler of torch._C (2.13): one memory_alloc event for each allocation and free, in order, frees negative
    config = profiler.ProfilerConfig(
        profiler.ProfilerState.CPU, False, True, False, False, False, profiler._ExperimentalConfig()
    )
    autograd._enable_profiler_legacy(config)
    try:
        result = run()
    finally:
        records = autograd._disable_profiler_legacy()
    running = peak = 0
    for thread in records:
        for event in thread:
            if event.kind() == "memory_alloc":
                running += event.cpu_memory_usage()
                peak = max(peak, running)
    return result, alive + peak


def bytes_alive(step: TrainingStep) -> int:
    """Bytes of this rank's parameters, buffers and optimizer state, each shared storage once."""
    tensors = [*step.model.parameters(), *step.model.buffers()]
    for state in step.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    storages = {s.data_ptr(): s.nbytes() for s in (local(t).untyped_storage() for t in tensors)}
    return sum(storages.values())


def reset_peaks(device: str) -> None:
    """Begin to look for a peak from now on."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError):
        CLEAR.write_text("5")  # Linux: the peak resident set starts again at the current one


def measured_memory(device: str, cpu_peak_allocated_bytes: int | None) -> MeasuredMemory:
    """Peaks since `reset_peaks`."""
    if device == "cuda":
        return MeasuredMemory(
            peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(),
            device_bytes=_nvml_bytes(),
            method=CUDA_METHOD,
        )
    return MeasuredMemory(
        peak_allocated_bytes=cpu_peak_allocated_bytes,
        peak_reserved_bytes=None,
        device_bytes=peak_resident_bytes(),
        method=CPU_METHOD,
    )


def peak_resident_bytes() -> int | None:
    """Peak resident set of this process; None where the kernel does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("VmHWM:")), None)
    return None if kib is None else int(kib) * KIB


def _nvml_bytes() -> int | None:
    """Device memory of this process, when nvidia-ml-py is there."""
    try:
        import os

        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next((p.usedGpuMemory for p in processes if p.pid == os.getpid()), None)
    finally:
        pynvml.nvmlShutdown()


def measured_step(reports: Sequence[StepReport]) -> MeasuredStep:
    """The mean warm step: a forecast over mixed lengths is a mean too. Without a warm step, the mean of all."""
    warm = [r for r in reports if r.is_warm] or list(reports)
    if not warm:
        raise ValueError("no steps were run")
    seconds = sum(r.step_seconds for r in warm)
    phases = {name: sum(getattr(r.phases, name) for r in warm) / len(warm) for name in StepPhases.model_fields}
    return MeasuredStep(
        seconds=seconds / len(warm),
        phases=StepPhases(**phases),
        tokens_per_second=sum(r.tokens for r in warm) / seconds,
        samples_per_second=sum(r.samples for r in warm) / seconds,
    )


class SeenShapes:
    """Shapes of batches that a process has trained on; the kernels for a new one are chosen in its first step."""

    def __init__(self, device: str):
        self.device = device
        self._seen: set[tuple[torch.Size, ...]] = set()

    def new_in(self, batches: Sequence[Batch]) -> bool:
        """Whether a batch has a shape that no batch had before, on a GPU."""
        if self.device != "cuda":
            return False
        shapes = {tuple(v.shape for v in batch.values() if isinstance(v, torch.Tensor)) for batch in batches}
        is_new = not shapes <= self._seen
        self._seen |= shapes
        return is_new


def cold_seconds(settings: Settings, device: str, reports: Sequence[StepReport]) -> tuple[float, float]:
    """Seconds that cold steps took longer than the mean warm one: of a GPU that starts, and of what was compiled.

    One of them is 0: where a step is compiled, nothing tells them apart.
    """
    warm = [r.step_seconds for r in reports if r.is_warm]
    is_compiled = settings.compile != "none"
    if not warm or not (is_compiled or device == "cuda"):
        return 0.0, 0.0
    usual = sum(warm) / len(warm)
    cold = sum(max(0.0, r.step_seconds - usual) for r in reports if not r.is_warm)
    return (0.0, cold) if is_compiled else (cold, 0.0)


def parameters_of(step: TrainingStep) -> ParameterCounts:
    """Counts of all and of trainable parameters, each shared tensor once."""
    everything = list(step.model.parameters())
    trained = {id(p) for group in step.optimizer.param_groups for p in group["params"]}
    return ParameterCounts(
        total=sum(p.numel() for p in everything), trainable=sum(p.numel() for p in everything if id(p) in trained)
    )


def versions() -> dict[str, str]:
    """Versions of the packages that a measurement depends on."""
    installed = {}
    for package in ("forerun", "torch", "transformers", "peft", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed
