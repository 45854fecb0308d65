"""Forecasts for the rows of one library set: JSON rows on stdin, one JSON line for each on stdout."""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.scoreboard.libraries import INSTALLED
from benchmarks.scoreboard.programs import PROGRAMS, TRUTH

from forerun.api import request_of
from forerun.clock.host_speed import host_shares
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.errors import ForerunError
from forerun.forecasting.any_step import trace_program
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.ranges import PROGRAM, SETTINGS, group_of, run_range, step_range
from forerun.forecasting.step_model import model_steps
from forerun.hardware.catalogue import Device, device
from forerun.memory.card import replay_on_card
from forerun.settings.load import settings_from
from forerun.trace import Call

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


def as_asked(row: dict[str, Any], gpu: Device) -> dict[str, Any]:
    """What a settings file is answered."""
    request = request_of(settings_from(row["settings"]["settings"]), gpu, None)
    model = model_steps(request)
    answer = make_forecast(request, model)
    group, phases = group_of(model.longest.trace, model.costs, SETTINGS), answer.run.phases
    if row["covers"] == "training":  # the source's clock starts when everything is loaded
        phases = phases.model_copy(update={"startup_seconds": 0.0})
    step = answer.step.seconds
    run = run_range(phases, group, None, step)
    return {
        "allocated": answer.memory.peak_allocated_bytes,
        "reserved": answer.memory.peak_reserved_bytes,
        "device": answer.memory.device_bytes.expected,
        "conservative": answer.memory.device_bytes.conservative,
        "fits": answer.fits,
        "step": step.expected,
        "step_range": [step.optimistic, step.conservative],
        "run": run.expected,
        "run_range": [run.optimistic, run.conservative],
        "group": group,
    }


def as_run(row: dict[str, Any], gpu: Device) -> dict[str, Any]:
    """What the step of a program takes, with two simple estimates beside it."""
    build = partial(
        PROGRAMS[row["program"]], **{name: value for name, value in row["settings"].items() if name != "cuda"}
    )
    trace = trace_program(build, gpu, TRUTH.get(row["program"]))
    costs = PriorCosts.of(trace, gpu, world_size=trace.world_size)
    card, clock = replay_on_card(trace, gpu), replay_clock(trace, costs)
    group = group_of(trace, costs, PROGRAM)
    step = step_range(clock.seconds, group, host_shares([(trace, clock)], costs))
    dtypes = [s.dtype for call in trace.calls if call.flops for s in call.inputs if "float" in s.dtype]
    peak = gpu.peak(max(set(dtypes), key=dtypes.count))
    return {
        "allocated": card.memory.peak_allocated_bytes,
        "reserved": card.memory.peak_reserved_bytes,
        "device": card.device_bytes.expected,
        "conservative": card.device_bytes.conservative,
        "fits": card.fits,
        "step": step.expected,
        "step_range": [step.optimistic, step.conservative],
        "group": group,
        "constant_mfu": clock.model_flops / (peak * CONSTANT_MFU),
        "roofline": replay_clock(trace, Roofline(gpu)).seconds,
    }


def forecast(row: dict[str, Any]) -> dict[str, Any]:
    """Peaks in bytes and seconds of a step, or what went wrong."""
    start, gpu = time.perf_counter(), device(row["gpu"], row["settings"].get("cuda", ""))
    if row["card_bytes"] is not None:
        gpu = gpu.model_copy(update={"memory_bytes": int(row["card_bytes"])})
    try:
        result = (as_asked if row["program"] == "settings" else as_run)(row, gpu)
    except (ForerunError, RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        return {"id": row["id"], "error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"id": row["id"], "capacity": gpu.memory_bytes, **result, "seconds": time.perf_counter() - start}


def hide_torchao() -> None:
    """Let libraries of another time not find the torchao that is here: peft 0.14 wants names that 0.18 has not."""
    sys.modules["torchao"] = None  # type: ignore[assignment]


if __name__ == "__main__":
    for line in sys.stdin:
        row = json.loads(line)
        if row["library"] != INSTALLED:
            hide_torchao()
        print(json.dumps(forecast(row)), flush=True)
