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
    made = forecast_all([r for r in rows if r.library in sets])
    failed = [(r, made[r.id]["error"]) for r in rows if "error" in made.get(r.id, {})]
    pairs = [(r, made[r.id]) for r in rows if r.id in made and "error" not in made[r.id]]
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
        return {found["id"]: found for batch in pool.map(lambda c: run_worker(*c), chunks) for found in batch}


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
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(found) < len(rows):
        raise RuntimeError(f"{library}: {len(found)} of {len(rows)} rows came back. {done.stderr[-800:]}")
    return found


def errors(pairs: list[Pair], measured: str, forecast: str) -> np.ndarray:
    """Relative errors of the rows that have the measurement."""
    both = [(getattr(row, measured), made[forecast]) for row, made in pairs if getattr(row, measured) is not None]
    return np.array([predicted / actual - 1 for actual, predicted in both])


def summary(found: np.ndarray) -> dict[str, float]:
    """Rows, median, mean and 95th percentile of the absolute error, and the signed mean."""
    if not len(found):
        return {"rows": 0}
    size = np.abs(found)
    return {
        "rows": len(found),
        "median": float(np.median(size)),
        "mean": float(size.mean()),
        "p95": float(np.quantile(size, 0.95)),
        "bias": float(found.mean()),
    }


TIMES = ("step_seconds", "step")
QUANTITIES: dict[str, tuple[str, str, Callable[[Row], bool]]] = {
    "memory.allocated": ("allocated_bytes", "allocated", lambda row: True),
    "memory.reserved": ("reserved_bytes", "reserved", lambda row: True),
    "memory.device": ("device_bytes", "device", lambda row: not row.quantized),
    "memory.qlora_device": ("device_bytes", "device", lambda row: row.quantized),
}


def scores(pairs: list[Pair]) -> dict[str, Any]:
    """What the JSON line holds: fully specified rows; the held-out third and the others apart."""
    specified = [p for p in pairs if p[0].is_specified]
    found: dict[str, Any] = {}
    for name, (measured, forecast, wanted) in QUANTITIES.items():
        mine = [p for p in specified if wanted(p[0])]
        found[name] = summary(errors(mine, measured, forecast))
        found[f"{name}.held_out"] = summary(errors([p for p in mine if p[0].is_held_out], measured, forecast))
    found["memory.unspecified_allocated"] = summary(
        errors([p for p in pairs if not p[0].is_specified], "allocated_bytes", "allocated")
    )
    return found | conservative(pairs) | time_scores(pairs) | {"time.coverage": coverage(pairs)} | cpu_scores()


def cpu_scores() -> dict[str, Any]:
    """Of `benchmarks/cpu_steps.py` as last run: a forecast for one machine cannot be scored on another."""
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
    found: dict[str, Any] = {name: spread(errors(mine, "step_seconds", "step")) for name, mine in groups.items()}
    found["time.held_out"] = spread(errors([p for p in timed if p[0].is_held_out], *TIMES))
    found["time.all"] = spread(errors(timed, "step_seconds", "step"))
    found["time.constant_mfu"] = spread(errors(timed, "step_seconds", "constant_mfu"))
    found["time.torch_roofline"] = spread(errors(timed, "step_seconds", "roofline"))
    return found


def coverage(pairs: list[Pair]) -> float | None:
    """Share of the held-out steps on GPUs in the priors that took a time inside their range, which others gave."""
    inside = []
    for row, made in pairs:
        if row.is_specified and row.is_held_out and row.step_seconds is not None and made["evidence"] == "measured":
            low, high = TIME_SPREAD[made["evidence"]]
            inside.append(low <= row.step_seconds / made["step"] <= high)
    return float(np.mean(inside)) if inside else None


def spread(found: np.ndarray) -> dict[str, float]:
    """Rows, median and 90th percentile of the absolute error, the signed mean, and the 10th to 90th of the error."""
    if not len(found):
        return {"rows": 0}
    size, low_high = np.abs(found), np.quantile(found, [0.1, 0.9])
    return {
        "rows": len(found), "median": float(np.median(size)), "p90": float(np.quantile(size, 0.9)),
        "bias": float(found.mean()), "low": float(low_high[0]), "high": float(low_high[1]),
    }  # fmt: skip


def print_times(pairs: list[Pair]) -> None:
    """Step times by source and GPU, then overall beside the baselines."""
    timed = [p for p in pairs if p[0].step_seconds is not None]
    print(f"\n{'step time':<78} rows  median     p90    bias")
    for key in dict.fromkeys((row.program, row.gpu, row.is_specified) for row, _ in timed):
        found = spread(errors([p for p in timed if (p[0].program, p[0].gpu, p[0].is_specified) == key], *TIMES))
        note = "" if key[2] else " (not fully specified)"
        print(f"{key[0] + ' on ' + key[1] + note:<78}{found['rows']:>5}" + _figures(found))
    for name, found in time_scores(pairs).items():
        if found["rows"]:
            print(f"{name:<78}{found['rows']:>5}" + _figures(found))


def _figures(found: dict[str, float]) -> str:
    return "".join(f"{found[key]:>8.2%}" for key in ("median", "p90", "bias"))


def conservative(pairs: list[Pair]) -> dict[str, Any]:
    """Share of runs at or under the conservative device number, and what that number leaves idle of the card."""
    with_device = [p for p in pairs if p[0].device_bytes is not None]
    seen = [(row.device_bytes or 0.0, made) for row, made in with_device]
    within = [actual <= made["conservative"] for actual, made in seen]
    idle = [max(0.0, made["conservative"] - actual) / made["capacity"] for actual, made in seen]
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
    for name, (measured, forecast, wanted) in QUANTITIES.items():
        print(f"\n{name:<78} rows  median    mean     p95    bias")
        for label, part in parts([p for p in pairs if wanted(p[0])]):
            found = summary(errors(part, measured, forecast))
            if found["rows"]:
                figures = "".join(f"{found[key]:>8.2%}" for key in ("median", "mean", "p95", "bias"))
                print(f"{label:<78}{found['rows']:>5}{figures}")
    share = conservative(pairs)
    if share["memory.within_conservative"] is not None:
        print(
            f"\nat or under the conservative number: {share['memory.within_conservative']:.1%} of the fully specified"
        )
        print(f"runs, {share['memory.within_conservative.all']:.1%} of all; ", end="")
        print(f"it leaves {share['memory.idle_share']:.1%} of the card idle in the mean")


def write_rows(pairs: list[Pair], *, keep: bool = False) -> None:
    """Every row with its forecast and errors, in the order of their ids; `keep` leaves other rows of the file."""
    made_now = {row.id for row, _ in pairs}
    others = list(csv.reader(LATEST.read_text(encoding="utf-8").splitlines()))[1:] if keep else []
    lines = [line for line in others if line[0] not in made_now]
    for row, made in pairs:
        lines.append(
            [row.id, row.program, row.gpu, json.dumps(row.settings), row.is_specified, row.is_held_out,
             row.allocated_bytes, made["allocated"], _error(made["allocated"], row.allocated_bytes),
             row.device_bytes, made["device"], made["conservative"], _error(made["device"], row.device_bytes),
             row.reserved_bytes, made["reserved"],
             row.step_seconds, f"{made['step']:.6g}", _error(made["step"], row.step_seconds), row.note]
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
