"""The clock's seconds beside those of `measure_operators.py`, operator by operator.

    python -m benchmarks.truth.operators [--half fit|test|both] [--kind convolution] [--rows]

Each case is run on the virtual twin of the card and its calls are priced one by one. Names are dealt to two halves by
their hash, so that all dtypes, layouts and gradients of one shape are in one half: coefficients are fitted to `fit`
alone. Prints a table of errors by group, (forecast - measured) / measured in percent, and one JSON line.
"""

import argparse
import csv
import hashlib
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.truth.measure_operators import Case, cases

from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call
from forerun.virtual.session import VirtualSession

MEASURED = Path(__file__).parent / "operators-h100-80gb.csv"
GPU = "h100-80gb"


def half_of(name: str) -> str:
    """`fit` or `test`, by the shape that a name begins with."""
    shape = name.partition(",")[0]
    return "fit" if hashlib.sha256(shape.encode()).digest()[0] % 2 else "test"


def calls_of(case: Case) -> list[Call]:
    """What one call of a case records; the call before it is not counted."""
    with VirtualSession(device(GPU)) as session:
        call = case[-1](str(session.torch_device))
        kept = [call()]
        done = len(session.recorder.trace.ops)
        kept.append(call())
        trace = session.recorder.trace
        return [trace.calls[op.call] for op in trace.ops[done:]]


def measured() -> dict[tuple[str, ...], float]:
    """Seconds by kind, name, dtype and layout."""
    with open(MEASURED, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["error"]]
    return {tuple(row[key] for key in ("kind", "name", "dtype", "layout")): float(row["seconds"]) for row in rows}


def group_of(case: Case) -> str:
    """What a table puts together: part of a convolution, dtype and layout, or an operator."""
    kind, name, dtype, layout, _ = case
    return f"{name.rpartition(', ')[2]} {dtype} {layout}" if kind == "convolution" else f"{name}"


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("fit", "test", "both"), default="both")
    parser.add_argument("--kind", choices=("convolution", "operator"))
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    costs, truth, by_group = PriorCosts(device(GPU)), measured(), defaultdict(list)
    for case in cases():
        kind, name, dtype, layout, _ = case
        if kind == "host" or options.kind not in (None, kind) or options.half not in ("both", half_of(name)):
            continue
        seconds = truth.get((kind, name, dtype, layout))
        if seconds is None:
            continue
        forecast = sum(costs.device_seconds(call) for call in calls_of(case))
        by_group[kind, group_of(case)].append((forecast, seconds))
        if options.rows:
            error = 100 * (forecast / seconds - 1)
            print(f"{name:42}{dtype:6}{layout:12}{1e6 * forecast:10.1f}{1e6 * seconds:10.1f} us {error:+8.1f} %")
    result: dict[str, Any] = {"benchmark": "operators", "gpu": GPU, "half": options.half}
    for kind in ("convolution", "operator"):
        everything = []
        for (own, group), pairs in sorted(by_group.items()):
            if own == kind:
                errors = [forecast / seconds - 1 for forecast, seconds in pairs]
                everything += errors
                print(f"{kind:12}{group:34}{len(errors):5}{100 * statistics.median(errors):+9.1f} % "
                      f"{100 * statistics.median(map(abs, errors)):8.1f} %")  # fmt: skip
        if everything:
            sizes = sorted(map(abs, everything))
            result[kind] = {
                "rows": len(sizes), "median": statistics.median(sizes), "bias": statistics.median(everything),
                "p90": sizes[round(0.9 * (len(sizes) - 1))],
            }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
