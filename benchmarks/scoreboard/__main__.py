"""Forecasts against published measurements, without a GPU: `python -m benchmarks.scoreboard [--only TEXT] [--note …]`.

Prints both boards by source (as a user asks, the exact program), the ladders and the coverage of the time ranges, for
the fitted and the test half; writes them to `board.json`, rows of the fitted half to `latest.csv`, and the last line is
one JSON object. A scoring of all rows appends a dated line with the commit to `history.csv`. Rows of the test half
appear in sums only.

`--only` makes the rows anew whose id, program or source contains TEXT (several: commas), and takes the others from the
last run; `--resume` goes on with a run that was stopped; `--forecast-none` only sums up; `--data FOLDER` adds sources
whose numbers may not be copied here; `--installed` leaves out rows whose run used other library versions, which pip has
to fetch once; `--processes N` (2); `--added` scores the sources that came later, in the folder of that name.
The image models of `benchmarks.vision` are a source of their own: its last scoring is read from there.
"""

import argparse
import csv
import datetime
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.scoreboard.boards import (
    BOARDS,
    QUANTITIES,
    Pair,
    baselines,
    board,
    by_gpu,
    compiled,
    coverage,
    ladders,
    runs_inside,
)
from benchmarks.scoreboard.collect import outside_rows
from benchmarks.scoreboard.collect_user import OUTSIDE_SOURCES
from benchmarks.scoreboard.libraries import INSTALLED
from benchmarks.scoreboard.results import ROOT, commit, forecast_all, stored
from benchmarks.scoreboard.rows import ADDED, Row, load_rows

from forerun.forecasting.ranges import IMAGES

FOLDER = Path(__file__).parent
LATEST, BOARD, HISTORY = FOLDER / "latest.csv", FOLDER / "board.json", FOLDER / "history.csv"
CPU_STEPS = ROOT / "benchmarks" / "cpu_steps.json"
VISION = ROOT / "benchmarks" / "vision" / "board.json"
TIMES = ("step", "run")
TITLES = {"user": "as a user asks", "exact": "exact program"}
COLUMNS = [
    "id", "board", "source", "program", "gpu", "specified", "seen", "group", "outcome", "fits", "measured_allocated",
    "forecast_allocated", "error_allocated", "measured_reserved", "forecast_reserved", "error_reserved",
    "measured_device", "forecast_device", "conservative_device", "error_device", "measured_step", "forecast_step",
    "error_step", "measured_run", "forecast_run", "error_run", "note",
]  # fmt: skip


def main() -> None:
    """Forecast, print the tables and the JSON line."""
    options = _options()
    folder = ADDED if options.added else FOLDER
    rows = load_rows(folder / "rows") + (outside_rows(options.data) if options.data else [])
    if options.installed:
        rows = [row for row in rows if row.library == INSTALLED]
    wanted = [row for row in rows if _is_wanted(row, options.only)]
    forecasts = stored() if options.forecast_none else forecast_all(wanted, options.processes, resumes=options.resume)
    missing = [row for row in rows if "error" in forecasts.get(row.id, {"error": ""})]
    for row in missing:
        print(f"not forecast: {row.id}: {forecasts.get(row.id, {}).get('error', 'never run')}", file=sys.stderr)
    pairs = [(row, forecasts[row.id]) for row in rows if row not in missing]
    scores = summed(pairs) | {"rows": len(rows), "rows_not_forecast": [row.id for row in missing]}
    both = load_rows() + load_rows(ADDED / "rows")  # compiled steps are few: those of both boards are one line
    known = {row.id: forecasts[row.id] for row in both if "error" not in forecasts.get(row.id, {"error": ""})}
    scores["compiled"] = compiled([(row, known[row.id]) for row in both if row.id in known])
    print_boards(scores)
    write_rows(pairs, folder / LATEST.name)
    (folder / BOARD.name).write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
    if not options.installed and not options.only:
        append_history(scores, options.note, folder / HISTORY.name)
    print(json.dumps(scores))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoreboard")
    parser.add_argument("--only", default="", help="make anew the rows whose id, program or source contains this")
    parser.add_argument("--forecast-none", action="store_true", help="sum up what was forecast last")
    parser.add_argument("--resume", action="store_true", help="leave alone the rows whose forecast is up to date")
    parser.add_argument("--installed", action="store_true", help="only rows of the installed libraries")
    parser.add_argument("--added", action="store_true", help="score the sources that came later")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--data", type=Path, help="folder of published data whose licence forbids copies here")
    parser.add_argument("--note", default="", help="what changed since the last scoring")
    return parser.parse_args()


def _is_wanted(row: Row, only: str) -> bool:
    return any(text in name for text in only.split(",") for name in (row.id, row.program, row.source))


def summed(pairs: list[Pair]) -> dict[str, Any]:
    """Everything that is printed and written, without single rows."""
    vision = json.loads(VISION.read_text(encoding="utf-8")) if VISION.exists() else {}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "made_at": Counter(forecast.get("made_at", commit()) for _, forecast in pairs),
        **{name: board(pairs, name) for name in BOARDS},
        "vision": vision,
        "ladders": ladders(pairs),
        "coverage": coverage(pairs) | _coverage_of_images(vision),
        "by_gpu": by_gpu(pairs),
        "runs_inside": runs_inside(pairs),
        "baselines": baselines(pairs),
        **_cpu(),
    }


def _coverage_of_images(vision: dict[str, Any]) -> dict[str, Any]:
    halves = {
        half: {"rows": figures["rows"], "blind": figures["rows"] * (half == "test"), "inside": figures["in_range"]}
        for half, figures in vision.items()
    }
    return {IMAGES: halves} if halves else {}


def _cpu() -> dict[str, Any]:
    """Errors of the last run of `benchmarks/cpu_steps.py`: a forecast for one machine cannot be scored on another."""
    if not CPU_STEPS.exists():
        return {}
    last = json.loads(CPU_STEPS.read_text(encoding="utf-8"))
    return {"cpu": {"calibrated": last["calibrated"], "after_one_run": last["after_one_run"]}}


def print_boards(scores: dict[str, Any]) -> None:
    """The tables of both boards, ladders, coverage."""
    for name in BOARDS:
        for quantity in QUANTITIES:
            table = scores[name][quantity]
            print(f"\n{TITLES[name] + ': ' + quantity:<60} half  rows  median     p90    bias")
            for line in table["by_source"]:
                print(f"{line['source']:<60} {line['half']:<5}{_figures(line)}")
            for half in ("fit", "test"):
                if table[half]["rows"]:
                    print(f"{'all of ' + str(table['sources']) + ' sources':<60} {half:<5}{_figures(table[half])}")
    print(f"\n{'does it fit?':<60} half   ran  right  failed  right")
    for line in scores["ladders"]:
        counts = f"{line['ran']:>5}{line['ran_right']:>7}{line['failed']:>8}{line['failed_right']:>7}"
        print(f"{line['source'] + ' (' + TITLES[line['board']] + ')':<60} {line['half']:<5}{counts}")
    print(f"\n{'steps inside their 80 % range':<60} half   rows  blind  inside")
    for group, halves in scores["coverage"].items():
        for half, figures in halves.items():
            print(f"{group:<60} {half:<5}{figures['rows']:>6}{figures['blind']:>7}{figures['inside']:>8.0%}")
    for half, figures in scores["runs_inside"].items():
        print(f"{'whole runs':<60} {half:<5}{figures['rows']:>6}{'':>7}{figures['inside']:>8.0%}")


def _figures(figures: dict[str, Any]) -> str:
    return f"{figures['rows']:>5}" + "".join(f"{figures[key]:>8.1%}" for key in ("median", "p90", "bias"))


def write_rows(pairs: list[Pair], path: Path) -> None:
    """Rows that may be looked at, with their forecasts and errors, in the order of their ids."""
    lines = []
    for row, forecast in pairs:
        if row.is_test or row.source in OUTSIDE_SOURCES:
            continue
        cells: dict[str, Any] = {
            "id": row.id, "board": row.board, "source": row.source, "program": row.program, "gpu": row.gpu,
            "specified": row.is_specified, "seen": row.is_seen, "group": forecast["group"], "outcome": row.outcome,
            "fits": forecast["fits"] if row.outcome else "", "conservative_device": forecast["conservative"],
            "note": row.note,
        }  # fmt: skip
        for quantity, field in QUANTITIES.items():
            measured, predicted = getattr(row, field), forecast.get(quantity, "")
            cells[f"measured_{quantity}"] = measured
            if quantity == "run" and measured is None:
                predicted = ""  # a run's length is often made up where its step was measured
            cells[f"forecast_{quantity}"] = f"{predicted:.6g}" if predicted and quantity in TIMES else predicted
            cells[f"error_{quantity}"] = "" if measured is None else f"{predicted / measured - 1:+.4f}"
        lines.append(cells)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda line: line["id"]))


def append_history(scores: dict[str, Any], note: str, path: Path) -> None:
    """A dated line: the user board's test half, and the exact board."""
    line: dict[str, Any] = {"date": scores["date"], "commit": scores["commit"], "rows": scores["rows"]}
    for name, half in (("user", "test"), ("user", "fit"), ("exact", "fit")):
        for quantity in QUANTITIES:
            if quantity == "run" and path == HISTORY:  # its columns are those of before whole runs were scored
                continue
            figures = scores[name][quantity][half]
            line |= {f"{name}_{half}_{quantity}_{key}": figures.get(key, "") for key in ("rows", "median", "p90")}
    line["note"] = note
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(line), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


if __name__ == "__main__":
    main()
