"""What else happened on the machine while a run trained, to explain a forecast that missed.

What other processes used of the processors and what the hypervisor gave to others is not ours. PyTorch counts graphs
that it compiled; NVML tells the clock of a GPU and why it is low.
"""

import contextlib
import resource
import time
from typing import Any

import torch

from forerun.hardware.processor_time import ProcessorTime
from forerun.records import RunEvidence

PERCENT = 100
THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""nvmlClocksEventReason: power cap, hardware slowdown, software and hardware thermal slowdown, power brake (nvml.h)."""
SECONDS_BETWEEN_READINGS = 0.5
"""NVML says how busy the GPU was in the last sixth of a second to a second (`nvmlUtilization_t`, nvml.h). A reading
asks the driver, and the GPU waits for the next step meanwhile."""


class Witness:
    """Looks at the machine when it is made, at every step, and when asked for what it saw."""

    def __init__(self, device: str):
        self.device = device
        self._processors = ProcessorTime()
        self._compiled = _compiled_graphs()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._clocks: list[float] = []
        self.busy_share: float | None = None
        """Fraction of time in which the GPU was busy, read after the last step; None without a GPU."""
        self._throttled: list[bool] = []
        self._next_reading = 0.0
        self._gpu = _nvml_handle() if device == "cuda" else None

    def step_done(self) -> None:
        """Read a GPU's load and clock after an optimizer step, if the last reading is old enough."""
        if self._gpu is not None and time.monotonic() >= self._next_reading:
            self._next_reading = time.monotonic() + SECONDS_BETWEEN_READINGS
            library, handle, top = self._gpu
            self.busy_share = library.nvmlDeviceGetUtilizationRates(handle).gpu / PERCENT
            self._clocks.append(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM) / top)
            reasons = library.nvmlDeviceGetCurrentClocksEventReasons(handle)
            self._throttled.append(bool(reasons & THROTTLED))

    @property
    def clock_share(self) -> float | None:
        """GPU clock as a fraction of its highest, read after the last step; None without a GPU."""
        return self._clocks[-1] if self._clocks else None

    def evidence(self, steps: int, padded_tokens: int) -> RunEvidence:
        """Evidence of this process over `steps` optimizer steps with `padded_tokens` in all."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults
        others, stolen = self._processors.shares()
        return RunEvidence(
            other_processes_share=others,
            stolen_share=stolen,
            threads=torch.get_num_threads() if self.device == "cpu" else None,
            waiting_share=self._processors.waiting_share(),
            padded_tokens_per_step=padded_tokens / max(1, steps),
            compiled_graphs=_compiled_graphs() - self._compiled,
            fresh_bytes_per_step=faults * resource.getpagesize() / max(1, steps) if self.device == "cpu" else None,
            clock_share=sum(self._clocks) / len(self._clocks) if self._clocks else None,
            throttled_share=sum(self._throttled) / len(self._throttled) if self._throttled else None,
        )


def _compiled_graphs() -> int:
    """Graphs that Dynamo has compiled in this process."""
    # torch/_dynamo/output_graph.py (2.13): every compiled graph adds one to unique_graphs
    counters: Any = getattr(torch._dynamo, "utils", None) if hasattr(torch, "_dynamo") else None
    return 0 if counters is None else int(counters.counters["stats"].get("unique_graphs", 0))


def _nvml_handle() -> Any:
    """NVML, the GPU's handle and its highest clock in MHz; None where they cannot be had."""
    try:
        import pynvml
    except ImportError:
        return None
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        return pynvml, handle, pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return None
