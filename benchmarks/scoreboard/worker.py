"""Forecasts for the rows of one library set: JSON rows on stdin, one JSON line for each on stdout."""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.scoreboard.programs import PROGRAMS, TRUTH

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.data.plan import BatchShape
from forerun.errors import ForerunError
from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import Device, device
from forerun.memory.card import replay_on_card
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import Call, Trace
from forerun.virtual.session import VirtualSession
from forerun.virtual.trace_step import trace_step

CONSTANT_MFU = 0.4
"""Fraction of peak FLOP per second that calculators of training time take for every run."""


@dataclass(frozen=True)
class Roofline:
    """PyTorch's own estimate (`torch/distributed/_tools/runtime_estimator.py`): the larger of FLOP at peak and bytes at
    the datasheet's bandwidth, no launches."""

    gpu: Device
    is_host: bool = False
    description: str = "roofline"

    def host_seconds(self, call: Call) -> float:
        """Nothing."""
        return 0.0

    def device_seconds(self, call: Call) -> float:
        """FLOP at peak or bytes at the datasheet's bandwidth."""
        if call.is_view:
            return 0.0
        moving = (call.bytes_read + call.bytes_written) / (self.gpu.bandwidth_bytes_per_second or 1)
        floating = [spec.dtype for spec in call.inputs if "float" in spec.dtype] or ["float32"]
        return max(moving, call.flops / self.gpu.peak(floating[0]) if call.flops else 0.0)


def trace_row(row: dict[str, Any], gpu: Device) -> Trace:
    """The step of a row: a program of its source, or our own step from settings."""
    if row["program"] == "settings":
        settings = settings_from(row["settings"]["settings"])
        shape = BatchShape(settings.batch.micro_batch_size, settings.batch.sequence_length)
        return trace_step(settings, generic_workload(settings.workload), gpu, shape)
    build = partial(PROGRAMS[row["program"]], **row["settings"])
    return trace_program(build, VirtualSession(gpu), TRUTH.get(row["program"]))


def forecast(row: dict[str, Any]) -> dict[str, Any]:
    """Peaks in bytes and seconds of a step, or what went wrong."""
    start, gpu = time.perf_counter(), device(row["gpu"])
    try:
        trace = trace_row(row, gpu)
        costs = PriorCosts(gpu, tf32=trace.tf32, world_size=trace.world_size)
        card, clock = replay_on_card(trace, gpu), replay_clock(trace, costs)
        dtypes = [s.dtype for call in trace.calls if call.flops for s in call.inputs if "float" in s.dtype]
        peak = gpu.peak(max(set(dtypes), key=dtypes.count))
    except (ForerunError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        return {"id": row["id"], "error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {
        "id": row["id"],
        "allocated": card.memory.peak_allocated_bytes,
        "reserved": card.memory.peak_reserved_bytes,
        "device": card.device_bytes.expected,
        "conservative": card.device_bytes.conservative,
        "capacity": gpu.memory_bytes,
        "step": clock.seconds,
        "host": clock.phases.host_seconds,
        "constant_mfu": clock.model_flops / (peak * CONSTANT_MFU),
        "roofline": replay_clock(trace, Roofline(gpu)).seconds,
        "evidence": costs.evidence,
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(forecast(json.loads(line))), flush=True)
