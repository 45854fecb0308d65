"""Errors of the two boards by source, ladders of "does it fit", and how many measurements lie in their ranges.

Relative error is (forecast − measured) ÷ measured; `bias` is its mean with sign, the rest is of its absolute value.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from benchmarks.scoreboard.rows import Row

from forerun.forecasting.ranges import BOTH, IMAGES, OTHER_GPU, PROGRAM, SETTINGS, shares

Pair = tuple[Row, dict[str, Any]]
BOARDS = ("user", "exact")
QUANTITIES = {
    "allocated": "allocated_bytes", "reserved": "reserved_bytes", "device": "device_bytes", "step": "step_seconds",
    "run": "run_seconds",
}  # fmt: skip
"""Name in a forecast, and field of the row that it is compared with."""
HALVES: dict[str, Callable[[Row], bool]] = {"fit": lambda row: not row.is_test, "test": lambda row: row.is_test}


def short(source: str) -> str:
    """A source's name without its details."""
    return source.partition(",")[0].partition(" ")[0] if "/" in source.partition(" ")[0] else source.partition(",")[0]


def errors(pairs: Iterable[Pair], quantity: str, forecast: str = "") -> np.ndarray:
    """Relative errors of the rows that have the measurement."""
    field = QUANTITIES[quantity]
    measured = [(getattr(row, field), result) for row, result in pairs]
    both = [(actual, result[forecast or quantity]) for actual, result in measured if actual is not None]
    return np.array([predicted / actual - 1 for actual, predicted in both])


def summary(errors: np.ndarray) -> dict[str, float]:
    """Rows, median, 90th and 95th percentile of the absolute error, and the signed mean."""
    if not len(errors):
        return {"rows": 0}
    size = np.abs(errors)
    return {
        "rows": len(errors),
        "median": round(float(np.median(size)), 5),
        "p90": round(float(np.quantile(size, 0.9)), 5),
        "p95": round(float(np.quantile(size, 0.95)), 5),
        "bias": round(float(errors.mean()), 5),
    }


def by_source(pairs: list[Pair], quantity: str) -> list[dict[str, Any]]:
    """One line for each source and half."""
    table = []
    for source in dict.fromkeys(row.source for row, _ in pairs):
        for half, selects in HALVES.items():
            mine = [p for p in pairs if p[0].source == source and selects(p[0])]
            figures = summary(errors(mine, quantity))
            if figures["rows"]:
                seen = half == "fit" and all(row.is_seen for row, _ in mine)
                table.append({"source": short(source), "half": "seen" if seen else half, **figures})
    return table


def board(pairs: list[Pair], name: str) -> dict[str, Any]:
    """One board: for each quantity its sources, and all rows of each half together."""
    mine = [p for p in pairs if p[0].board == name]
    table: dict[str, Any] = {}
    for quantity in QUANTITIES:
        lines = by_source(mine, quantity)
        halves = {h: summary(errors([p for p in mine if f(p[0])], quantity)) for h, f in HALVES.items()}
        table[quantity] = {"sources": len({line["source"] for line in lines}), "by_source": lines, **halves}
    return table | {"conservative": conservative(mine)}


def by_gpu(pairs: list[Pair]) -> dict[str, dict[str, dict[str, float]]]:
    """Step errors of the user board without image models, by whether products of the GPU were measured, and by half."""
    mine = [p for p in pairs if p[0].board == "user" and not p[1]["group"].startswith(IMAGES)]
    groups = {
        "known": [p for p in mine if OTHER_GPU not in p[1]["group"]],
        "unseen": [p for p in mine if OTHER_GPU in p[1]["group"]],
    }
    return {
        name: {half: summary(errors([p for p in some if selects(p[0])], "step")) for half, selects in HALVES.items()}
        for name, some in groups.items()
    }


def compiled(pairs: list[Pair]) -> dict[str, dict[str, Any]]:
    """Errors of steps that were compiled, by half, with the number of their sources."""
    mine = [p for p in pairs if p[0].is_compiled and p[0].step_seconds is not None]
    halves: dict[str, dict[str, Any]] = {}
    for half, selects in HALVES.items():
        some = [p for p in mine if selects(p[0])]
        halves[half] = summary(errors(some, "step")) | {"sources": len({row.source for row, _ in some})}
    return halves


def conservative(pairs: list[Pair]) -> dict[str, Any]:
    """How many runs used at most the conservative device number, and how much of the card it leaves idle."""
    with_device = [(row.device_bytes, result) for row, result in pairs if row.device_bytes is not None]
    if not with_device:
        return {"rows": 0}
    idle = [max(0.0, f["conservative"] - actual) / f["capacity"] for actual, f in with_device]
    within = sum(actual <= f["conservative"] for actual, f in with_device)
    return {"rows": len(with_device), "within": within, "idle_share": round(float(np.mean(idle)), 4)}


def ladders(pairs: list[Pair]) -> list[dict[str, Any]]:
    """For each source: of the runs that ran, how many are said to fit; of those that failed, how many are said not to.

    `precision` is how many of those said to fit did; `recall` how many of those that did fit are said to.
    """
    table = []
    for name in BOARDS:
        asked = [p for p in pairs if p[0].board == name and p[0].outcome]
        for source in dict.fromkeys(row.source for row, _ in asked):
            for half, selects in HALVES.items():
                mine = [p for p in asked if p[0].source == source and selects(p[0])]
                if mine:
                    answers = [(row.outcome == "ran", bool(result["fits"])) for row, result in mine]
                    seen = half == "fit" and all(row.is_seen for row, _ in mine)
                    line = {"board": name, "source": short(source), "half": "seen" if seen else half}
                    table.append(line | ladder(answers))
    return table


def ladder(answers: list[tuple[bool, bool]]) -> dict[str, Any]:
    """Counts of pairs (it ran, it was said to fit)."""
    ran, failed = [says for did, says in answers if did], [says for did, says in answers if not did]
    said = sum(ran) + sum(failed)
    return {
        "ran": len(ran), "ran_right": sum(ran), "failed": len(failed), "failed_right": len(failed) - sum(failed),
        "precision": round(sum(ran) / said, 4) if said else None,
        "recall": round(sum(ran) / len(ran), 4) if ran else None,
        "right": round((sum(ran) + len(failed) - sum(failed)) / len(answers), 4),
    }  # fmt: skip


def ratios(pairs: list[Pair], group: str, *, judging: bool) -> dict[str, list[float]]:
    """Measured over forecast steps of a group, by family: of those that ranges are fitted to, or judged by."""
    by_family: dict[str, list[float]] = {}
    for row, result in pairs:
        if row.step_seconds is not None and judged_as(result["group"]) == group and row.judges_ranges is judging:
            by_family.setdefault(row.family, []).append(row.step_seconds / result["step"])
    return by_family


def coverage(pairs: list[Pair]) -> dict[str, dict[str, Any]]:
    """By group and half: measured steps, how many of them are blind, and the share inside their 80 % range."""
    timed = [p for p in pairs if p[0].step_seconds is not None]
    table: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(judged_as(result["group"]) for _, result in pairs):
        for half, judging in (("fit", False), ("test", True)):
            mine = [p for p in timed if judged_as(p[1]["group"]) == group and p[0].judges_ranges is judging]
            if mine:
                inside = float(np.mean([is_inside(*p) for p in mine]))
                blind = sum(row.is_test for row, _ in mine)
                figures = {"rows": len(mine), "blind": blind, "inside": round(inside, 4)}
                table.setdefault(group, {})[half] = figures
    return table


def is_inside(row: Row, result: dict[str, Any]) -> bool:
    """Whether the measured step lies in the range of its forecast."""
    low, high = result.get("step_range") or [share * result["step"] for share in shares(result["group"])]
    return low <= (row.step_seconds or 0.0) <= high


def runs_inside(pairs: list[Pair]) -> dict[str, dict[str, float]]:
    """By half: measured whole runs, and the share inside their 80 % range."""
    timed = [(row, result) for row, result in pairs if row.run_seconds is not None]
    halves: dict[str, dict[str, float]] = {}
    for half, selects in HALVES.items():
        mine = [(row.run_seconds or 0.0, *result["run_range"]) for row, result in timed if selects(row)]
        if mine:
            inside = float(np.mean([low <= seconds <= high for seconds, low, high in mine]))
            halves[half] = {"rows": len(mine), "inside": round(inside, 4)}
    return halves


def judged_as(group: str) -> str:
    """The group whose range was fitted: a program or a settings file on a GPU that nobody measured is one of GPUs."""
    stated, _, doubt = group.partition(BOTH)
    return doubt if doubt and stated in (PROGRAM, SETTINGS) else group


def baselines(pairs: list[Pair]) -> dict[str, Any]:
    """What two simple estimates make of the steps of the exact board."""
    mine = [p for p in pairs if p[0].board == "exact" and "roofline" in p[1]]
    return {name: summary(errors(mine, "step", name)) for name in ("constant_mfu", "roofline")}
