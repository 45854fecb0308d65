"""Forecasts against published measurements, without a GPU: `python -m benchmarks.scoreboard [--only TEXT]`.

Prints errors for each source and overall, for the rows that were looked at and the third that was held out; writes
every row to `benchmarks/scoreboard/latest.csv`; the last line is one JSON object. Relative error is
(forecast − measured) ÷ measured; `bias` is its mean with sign, the rest is of its absolute value. `--installed` skips
rows whose run used other library versions, which pip has to fetch once; `--only` makes the rows anew whose id contains
TEXT, and leaves the others in the file as they are.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.scoreboard.libraries import INSTALLED, SETS, search_path
from benchmarks.scoreboard.rows import Row, load_rows

from forerun.forecasting.ranges import TIME_SPREAD

ROOT = Path(__file__).resolve().parents[2]
LATEST = Path(__file__).parent / "latest.csv"
CPU_STEPS = ROOT / "benchmarks" / "cpu_steps.json"
PROCESSES = 2
Pair = tuple[Row, dict[str, Any]]


def main() -> None:
    """Forecast every row, print the tables and the JSON line."""
    rows = load_rows()
    if "--only" in sys.argv:
        rows = [row for row in rows if sys.argv[sys.argv.index("--only") + 1] in row.id]
    sets = [INSTALLED] if "--installed" in sys.argv else list(SETS)
    forecasts = forecast_all([r for r in rows if r.library in sets])
    failed = [(r, forecasts[r.id]["error"]) for r in rows if "error" in forecasts.get(r.id, {})]
    pairs = [(r, forecasts[r.id]) for r in rows if r.id in forecasts and "error" not in forecasts[r.id]]
    for row, error in failed:
        print(f"not forecast: {row.id}: {error}", file=sys.stderr)
    print_tables(pairs)
    print_times(pairs)
    write_rows(pairs, keep="--only" in sys.argv)
    print(json.dumps(scores(pairs) | {"rows_not_forecast": len(rows) - len(pairs)}))


def forecast_all(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Results by row id, from worker processes that each see one set of libraries."""
    chunks = []
    for name in SETS:
        of_set = [r for r in rows if r.library == name]
        chunks += [(name, of_set[k::PROCESSES]) for k in range(PROCESSES) if of_set[k::PROCESSES]]
    with ThreadPoolExecutor(PROCESSES) as pool:
        return {forecast["id"]: forecast for batch in pool.map(lambda c: run_worker(*c), chunks) for forecast in batch}


def run_worker(library: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Forecasts of `rows` in a process that sees `library`; errors for all where it cannot be installed."""
    try:
        folder = search_path(library)
    except RuntimeError as error:
        return [{"id": row.id, "error": str(error)} for row in rows]
    paths = [*([str(folder)] if folder else []), str(ROOT / "src"), str(ROOT)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    lines = "\n".join(json.dumps(asdict(row)) for row in rows)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scoreboard.worker"]
    process = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, check=False)
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    if len(results) < len(rows):
        raise RuntimeError(f"{library}: {len(results)} of {len(rows)} rows came back. {process.stderr[-800:]}")
    return results


def errors(pairs: list[Pair], measured: str, name: str) -> np.ndarray:
    """Relative errors of the rows that have the measurement."""
    both = [(getattr(row, measured), forecast[name]) for row, forecast in pairs if getattr(row, measured) is not None]
    return np.array([predicted / actual - 1 for actual, predicted in both])


def summary(errors: np.ndarray) -> dict[str, float]:
    """Rows, median, mean and 95th percentile of the absolute error, and the signed mean."""
    if not len(errors):
        return {"rows": 0}
    size = np.abs(errors)
    return {
        "rows": len(errors),
        "median": float(np.median(size)),
        "mean": float(size.mean()),
        "p95": float(np.quantile(size, 0.95)),
        "bias": float(errors.mean()),
    }


TIMES = ("step_seconds", "step")
QUANTITIES: dict[str, tuple[str, str, Callable[[Row], bool]]] = {
    "memory.allocated": ("allocated_bytes", "allocated", lambda row: True),
    "memory.reserved": ("reserved_bytes", "reserved", lambda row: True),
    "memory.device": ("device_bytes", "device", lambda row: not row.quantized),
    "memory.qlora_device": ("device_bytes", "device", lambda row: row.quantized),
}


def scores(pairs: list[Pair]) -> dict[str, Any]:
    """Errors for the JSON line, of fully specified rows; those of the held-out third and of other rows apart."""
    specified = [p for p in pairs if p[0].is_specified]
    table: dict[str, Any] = {}
    for name, (measured, forecast, selects) in QUANTITIES.items():
        mine = [p for p in specified if selects(p[0])]
        table[name] = summary(errors(mine, measured, forecast))
        table[f"{name}.held_out"] = summary(errors([p for p in mine if p[0].is_held_out], measured, forecast))
    table["memory.unspecified_allocated"] = summary(
        errors([p for p in pairs if not p[0].is_specified], "allocated_bytes", "allocated")
    )
    return table | conservative(pairs) | time_scores(pairs) | {"time.coverage": coverage(pairs)} | cpu_scores()


def cpu_scores() -> dict[str, Any]:
    """Errors of the last run of `benchmarks/cpu_steps.py`: a forecast for one machine cannot be scored on another."""
    if not CPU_STEPS.exists():
        return {}
    last = json.loads(CPU_STEPS.read_text(encoding="utf-8"))
    return {"time.calibrated_cpu": last["calibrated"], "time.cpu_after_one_run": last["after_one_run"]}


def time_scores(pairs: list[Pair]) -> dict[str, Any]:
    """Step time of fully specified rows, by whether products of that GPU were measured, beside two baselines."""
    timed = [p for p in pairs if p[0].is_specified and p[0].step_seconds is not None]
    groups = {
        "time.known_gpu": [p for p in timed if p[1]["evidence"] == "measured"],
        "time.unseen_gpu": [p for p in timed if p[1]["evidence"] != "measured"],
    }
    table: dict[str, Any] = {name: spread(errors(mine, "step_seconds", "step")) for name, mine in groups.items()}
    table["time.held_out"] = spread(errors([p for p in timed if p[0].is_held_out], *TIMES))
    table["time.all"] = spread(errors(timed, "step_seconds", "step"))
    table["time.constant_mfu"] = spread(errors(timed, "step_seconds", "constant_mfu"))
    table["time.torch_roofline"] = spread(errors(timed, "step_seconds", "roofline"))
    return table


def coverage(pairs: list[Pair]) -> float | None:
    """Share of the held-out steps on GPUs in the priors that took a time inside their range, which others gave."""
    inside = []
    for row, forecast in pairs:
        if row.is_specified and row.is_held_out and row.step_seconds is not None and forecast["evidence"] == "measured":
            low, high = TIME_SPREAD[forecast["evidence"]]
            inside.append(low <= row.step_seconds / forecast["step"] <= high)
    return float(np.mean(inside)) if inside else None


def spread(errors: np.ndarray) -> dict[str, float]:
    """Rows, median and 90th percentile of the absolute error, the signed mean, and the 10th to 90th of the error."""
    if not len(errors):
        return {"rows": 0}
    size, low_high = np.abs(errors), np.quantile(errors, [0.1, 0.9])
    return {
        "rows": len(errors), "median": float(np.median(size)), "p90": float(np.quantile(size, 0.9)),
        "bias": float(errors.mean()), "low": float(low_high[0]), "high": float(low_high[1]),
    }  # fmt: skip


def print_times(pairs: list[Pair]) -> None:
    """Step times by source and GPU, then overall beside the baselines."""
    timed = [p for p in pairs if p[0].step_seconds is not None]
    print(f"\n{'step time':<78} rows  median     p90    bias")
    for key in dict.fromkeys((row.program, row.gpu, row.is_specified) for row, _ in timed):
        figures = spread(errors([p for p in timed if (p[0].program, p[0].gpu, p[0].is_specified) == key], *TIMES))
        note = "" if key[2] else " (not fully specified)"
        print(f"{key[0] + ' on ' + key[1] + note:<78}{figures['rows']:>5}" + _figures(figures))
    for name, figures in time_scores(pairs).items():
        if figures["rows"]:
            print(f"{name:<78}{figures['rows']:>5}" + _figures(figures))


def _figures(figures: dict[str, float]) -> str:
    return "".join(f"{figures[key]:>8.2%}" for key in ("median", "p90", "bias"))


def conservative(pairs: list[Pair]) -> dict[str, Any]:
    """Share of runs at or under the conservative device number, and what that number leaves idle of the card."""
    with_device = [p for p in pairs if p[0].device_bytes is not None]
    actual_and_forecast = [(row.device_bytes or 0.0, forecast) for row, forecast in with_device]
    within = [actual <= forecast["conservative"] for actual, forecast in actual_and_forecast]
    idle = [
        max(0.0, forecast["conservative"] - actual) / forecast["capacity"] for actual, forecast in actual_and_forecast
    ]
    sure = [w for w, (row, _) in zip(within, with_device, strict=True) if row.is_specified]
    return {
        "memory.within_conservative": float(np.mean(sure)) if sure else None,
        "memory.within_conservative.all": float(np.mean(within)) if within else None,
        "memory.idle_share": float(np.mean(idle)) if idle else None,
    }


def parts(pairs: list[Pair]) -> Iterator[tuple[str, list[Pair]]]:
    """Rows by source, then all."""
    for source in dict.fromkeys(row.source for row, _ in pairs):
        for specified in (True, False):
            mine = [p for p in pairs if p[0].source == source and p[0].is_specified is specified]
            if mine:
                yield source.partition(",")[0][:52] + ("" if specified else " (not fully specified)"), mine
    specified_rows = [p for p in pairs if p[0].is_specified]
    yield "all fully specified", specified_rows
    yield "  looked at", [p for p in specified_rows if not p[0].is_held_out]
    yield "  held out", [p for p in specified_rows if p[0].is_held_out]


def print_tables(pairs: list[Pair]) -> None:
    """One table for each quantity."""
    for name, (measured, forecast, selects) in QUANTITIES.items():
        print(f"\n{name:<78} rows  median    mean     p95    bias")
        for label, part in parts([p for p in pairs if selects(p[0])]):
            figures = summary(errors(part, measured, forecast))
            if figures["rows"]:
                columns = "".join(f"{figures[key]:>8.2%}" for key in ("median", "mean", "p95", "bias"))
                print(f"{label:<78}{figures['rows']:>5}{columns}")
    share = conservative(pairs)
    if share["memory.within_conservative"] is not None:
        print(
            f"\nat or under the conservative number: {share['memory.within_conservative']:.1%} of the fully specified"
        )
        print(f"runs, {share['memory.within_conservative.all']:.1%} of all; ", end="")
        print(f"it leaves {share['memory.idle_share']:.1%} of the card idle in the mean")


def write_rows(pairs: list[Pair], *, keep: bool = False) -> None:
    """Every row with its forecast and errors, in the order of their ids; `keep` leaves other rows of the file."""
    current_ids = {row.id for row, _ in pairs}
    others = list(csv.reader(LATEST.read_text(encoding="utf-8").splitlines()))[1:] if keep else []
    lines = [line for line in others if line[0] not in current_ids]
    for row, forecast in pairs:
        lines.append(
            [row.id, row.program, row.gpu, json.dumps(row.settings), row.is_specified, row.is_held_out,
             row.allocated_bytes, forecast["allocated"], _error(forecast["allocated"], row.allocated_bytes),
             row.device_bytes, forecast["device"], forecast["conservative"],
             _error(forecast["device"], row.device_bytes),
             row.reserved_bytes, forecast["reserved"],
             row.step_seconds, f"{forecast['step']:.6g}", _error(forecast["step"], row.step_seconds), row.note]
        )  # fmt: skip
    with LATEST.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["id", "program", "gpu", "settings", "specified", "held_out", "measured_allocated", "forecast_allocated",
             "error_allocated", "measured_device", "forecast_device", "conservative_device", "error_device",
             "measured_reserved", "forecast_reserved", "measured_step", "forecast_step", "error_step", "note"]
        )  # fmt: skip
        writer.writerows(sorted(lines, key=lambda line: line[0]))


def _error(forecast: float, measured: float | None) -> str:
    return "" if measured is None else f"{forecast / measured - 1:+.4f}"


if __name__ == "__main__":
    main()
