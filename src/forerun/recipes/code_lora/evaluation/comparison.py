"""Variants of `code-lora` side by side: forecast and measured costs, scores, and which differences are real."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from forerun.evaluate.proportions import paired_difference, samples_needed, tasks_needed, wilson
from forerun.report.tables import Cell, ResultCurve, ResultTable
from forerun.runs.recipe import SweepRun
from forerun.units import GIB, MIB


def comparison(runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """Costs and scores of all runs, and every pair of them told apart or not."""
    tables = [costs_table(runs), scores_table(runs)]
    if len(runs) > 1:
        tables.append(pairs_table(runs))
    return tables, []


def costs_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Trainable parameters, step time and memory, forecast and measured."""
    large = max(run.forecast.memory.peak_allocated_bytes for run in runs) > 8 * GIB
    unit, name = (GIB, "GiB") if large else (MIB, "MiB")
    rows: list[list[Cell]] = []
    for run in runs:
        forecast, measured = run.forecast, run.measurement
        peak = measured.memory.peak_allocated_bytes
        rows.append([
            run.name, measured.parameters.trainable, 100 * measured.parameters.trainable / forecast.parameters.total,
            1e3 * forecast.step.seconds.expected, 1e3 * measured.step.seconds,
            forecast.memory.peak_allocated_bytes / unit, None if peak is None else peak / unit,
            forecast.run.seconds.expected, measured.run.seconds,
            forecast.run.phases.evaluation_seconds, measured.run.phases.evaluation_seconds,
        ])  # fmt: skip
    pairs = ("step ms", f"peak {name}", "run s", "evaluation s")
    columns = ["variant", "trained", "% of all", *(f"{p} {side}" for p in pairs for side in ("forecast", "measured"))]
    return ResultTable(title="What each variant costs", columns=columns, rows=rows)


def scores_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Scores of each variant; the share is pass@1 where tasks have tests, else that of answers that parse."""
    what = "pass@1" if all("passed" in run.results for run in runs) else "parses"
    rows: list[list[Cell]] = []
    for run in runs:
        scores, metrics = _scores(run, what), run.measurement.metrics
        share = wilson(sum(scores), len(scores)) if scores else None
        rows.append([
            run.name, len(scores), *((share.value, share.low, share.high) if share else (None, None, None)),
            *(metrics.get(name) for name in ("base.pass_at_1", "parses", "bleu", "chrf")),
            _times_100(metrics.get("code_bleu")), metrics.get("loss"), metrics.get("base.loss"),
        ])  # fmt: skip
    columns = ["variant", "tasks", what, "low", "high", "base pass@1", "parses", "BLEU", "chrF", "CodeBLEU", "loss",
               "base loss"]  # fmt: skip
    threads = sorted({run.measurement.evidence.threads or 0 for run in runs} - {0})
    note = f" Threads: {', '.join(map(str, threads))}; another number rounds otherwise." if threads else ""
    return ResultTable(
        title="What each variant reaches", note=f"Wilson's 95 % interval of {what}.{note}", columns=columns, rows=rows
    )


def pairs_table(runs: Sequence[SweepRun]) -> ResultTable:
    """Each pair: the difference, its interval, and how many tasks would be needed to tell it."""
    what = "pass@1" if all("passed" in run.results for run in runs) else "parses"
    rows: list[list[Cell]] = []
    distinct = 0
    for first, second in combinations(runs, 2):
        row = _pair(first, second, what)
        distinct += row[-2] == "differ"
        rows.append(row)
    statement = (
        f"{distinct} of {len(rows)} pairs differ by more than chance." if distinct else
        f"No pair of variants can be told apart by {what}: every difference here is within noise."
    )  # fmt: skip
    note = (
        f"{statement} Paired bootstrap over the same tasks where both runs had them; the last column is how many tasks "
        f"would tell a difference as large as the one seen (5 %, power 80 %)."
    )
    columns = ["first", "second", f"difference of {what}", "low", "high", "verdict", "tasks needed"]
    return ResultTable(title="Told apart?", note=note, columns=columns, rows=rows)


def _pair(first: SweepRun, second: SweepRun, what: str) -> list[Cell]:
    one, two = _scores(first, what), _scores(second, what)
    if not one or not two or first.results.get("tasks") != second.results.get("tasks"):
        mean_one, mean_two = _mean(one), _mean(two)
        tasks = None if mean_one is None or mean_two is None else samples_needed(mean_one, mean_two)
        gap = None if mean_one is None or mean_two is None else mean_one - mean_two
        return [first.name, second.name, gap, None, None, "other tasks, not compared", tasks]
    gap = paired_difference(one, two)
    verdict = "differ" if gap.low > 0 or gap.high < 0 else "within noise"
    return [first.name, second.name, gap.value, gap.low, gap.high, verdict, tasks_needed(one, two)]


def _scores(run: SweepRun, what: str) -> list[float]:
    values: Any = run.results.get("passed" if what == "pass@1" else "parses", ())
    return [float(value) for value in values]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value
