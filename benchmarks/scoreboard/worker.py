"""Forecasts for the rows of one library set: JSON rows on stdin, one JSON line for each on stdout."""

import json
import sys
import time
from functools import partial
from typing import Any

from benchmarks.scoreboard.programs import PROGRAMS, TRUTH

import forerun
from forerun.errors import ForerunError


def forecast(row: dict[str, Any]) -> dict[str, Any]:
    """Peaks in bytes, or what went wrong."""
    start = time.perf_counter()
    try:
        build = partial(PROGRAMS[row["program"]], **row["settings"])
        memory = forerun.forecast_step(build, gpu=row["gpu"], truth=TRUTH.get(row["program"])).memory
    except (ForerunError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        return {"id": row["id"], "error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {
        "id": row["id"],
        "allocated": memory.peak_allocated_bytes,
        "reserved": memory.peak_reserved_bytes,
        "device": memory.device_bytes.expected,
        "conservative": memory.device_bytes.conservative,
        "capacity": memory.capacity_bytes,
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(forecast(json.loads(line))), flush=True)
