"""What does a study show? History beside luck, prices beside costs, what mattered, finalists, the test."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from forerun.report.tables import Cell, ResultCurve, ResultTable, Series
from forerun.tune.finalists import RetrainedFinalist
from forerun.tune.luck import (
    SPREAD_KNOWN_FROM,
    Importance,
    best_so_far,
    expected_gain,
    importances,
    noise_band,
    pooled_noise,
)
from forerun.tune.study import completed, finished, in_one_go
from forerun.units import MINUTE, format_percent, format_seconds

SHOWN_IMPORTANCES = 16
WINNER = "winner's best start"
"""Row of the test table: the model that is handed on."""
SHOWN_BASELINES = ("all-negative", "tf-idf")
NOTES = ("outcome", "reason", "price", "wall_seconds", "overrides", "runs")
"""Notes of a trial that its document repeats."""


def noise_of(study: optuna.Study, finalists: Sequence[RetrainedFinalist]) -> tuple[float, str]:
    """Standard deviation of one trial's score by chance alone, and how it was estimated."""
    noise = pooled_noise([[start.score for start in finalist.starts] for finalist in finalists])
    if noise is not None:
        starts = sum(len(finalist.starts) for finalist in finalists)
        return noise, f"spread over starting points of the finalists ({starts} runs)"
    errors = [t.user_attrs["standard_error"] for t in completed(study) if "standard_error" in t.user_attrs]
    if not any(errors):
        return 0.0, "not measured; finalists from several starting points would show it"
    return (fmean(errors) if errors else 0.0), "standard error over the selection rows, which is at least as large"


def trials_table(study: optuna.Study) -> ResultTable:
    """Every trial: what it tried, what it was to cost and cost, what came of it."""
    rows: list[list[Cell]] = []
    for trial in study.get_trials(deepcopy=False):
        notes = trial.user_attrs
        price = notes.get("price", {}).get("expected")
        took = notes.get("wall_seconds")
        rows.append(
            [
                trial.number, notes.get("outcome", trial.state.name.lower()), trial.value,
                None if price is None else format_seconds(price), None if took is None else format_seconds(took),
                ", ".join(f"{name.rpartition('.')[2]}={_short(value)}" for name, value in trial.params.items()),
            ]
        )  # fmt: skip
    return ResultTable(
        title="Trials",
        note="Price: forecast before the trial started, its process included.",
        columns=["trial", "outcome", "score", "price", "took", "settings"],
        rows=rows,
    )


def price_errors(study: optuna.Study) -> list[float]:
    """(price - seconds taken) / taken of every trial that ran to its end in one go."""
    return [t.user_attrs["price"]["expected"] / t.user_attrs["wall_seconds"] - 1 for t in in_one_go(study)]


def price_table(study: optuna.Study) -> ResultTable:
    """How good the prices were, and what pricing cost."""
    errors = price_errors(study)
    trials = study.get_trials(deepcopy=False)
    pricing = [t.user_attrs["pricing_seconds"] for t in trials if "pricing_seconds" in t.user_attrs]
    traced = [t for t in trials if t.user_attrs.get("traced")]
    again = [t.user_attrs["pricing_seconds"] for t in trials if t.user_attrs.get("traced") is False]
    inside = [
        t.user_attrs["price"]["optimistic"] <= t.user_attrs["wall_seconds"] <= t.user_attrs["price"]["conservative"]
        for t in in_one_go(study)
    ]
    rows: list[list[Cell]] = [
        ["trials that ran to their end in one go", len(errors)],
        ["median error of the price", format_percent(median(abs(e) for e in errors)) if errors else None],
        ["bias of the price", format_percent(median(errors), signed=True) if errors else None],
        ["inside the range", f"{sum(inside)} of {len(inside)}" if inside else None],
        ["trials whose step was traced", f"{len(traced)} of {len(pricing)}"],
        ["median time to price, traced", _median_seconds([t.user_attrs["pricing_seconds"] for t in traced])],
        ["median time to price, known step", _median_seconds(again)],
        ["refused before they ran", sum(t.user_attrs.get("outcome") == "refused" for t in trials)],
        ["ran out of memory", sum(t.user_attrs.get("outcome") == "out of memory" for t in trials)],
    ]
    return ResultTable(
        title="Prices beside what was paid", note="Error = (price − taken) ÷ taken.", columns=["", "value"], rows=rows
    )


def asked_table(study: optuna.Study, name: str, noise: float) -> ResultTable:
    """Scores and seconds of the trials by each value of a setting that the user asked to search."""
    trials = [trial for trial in completed(study) if name in trial.params]
    rows: list[list[Cell]] = []
    means = {}
    for value in dict.fromkeys(trial.params[name] for trial in trials):
        mine = [trial for trial in trials if trial.params[name] == value]
        means[value] = fmean(float(trial.value or 0.0) for trial in mine)
        seconds = [trial.user_attrs["wall_seconds"] for trial in mine if "wall_seconds" in trial.user_attrs]
        rows.append([str(value), len(mine), means[value], max(trial.value or 0.0 for trial in mine),
                     _median_seconds(seconds)])  # fmt: skip
    gap = max(means.values()) - min(means.values()) if means else 0.0
    verdict = "can be told by" if means and gap > 2 * noise else "cannot be told by"
    return ResultTable(
        title=f"By {name}",
        note="All are scored on the same rows by the same metric, but differ in other settings too. Means lie "
        f"{gap:.4f} apart, and the noise of one score is {noise:.4f}: values {verdict} their scores. Where they "
        "cannot, take the fastest.",
        columns=[name, "finished", "mean score", "best score", "median time"],
        rows=rows,
    )


def history_curve(study: optuna.Study, noise: float, source: str, baselines: Mapping[str, float]) -> ResultCurve:
    """Best-so-far beside what the best of as many equal trials would show, and the baselines."""
    trials = completed(study)
    scores = [float(t.value or 0.0) for t in trials]
    across = [float(number) for number in range(1, len(scores) + 1)]
    band = noise_band(scores, noise)
    best = best_so_far(scores)
    series = [
        Series(name="best so far", x=across, y=best),
        Series(
            name="luck alone", x=across, y=[p.middle for p in band], low=[p.low for p in band],
            high=[p.high for p in band],
        ),
        Series(name="trial", x=across, y=scores, is_scattered=True),
    ]  # fmt: skip
    series += [
        Series(name=name, x=[across[0], across[-1]], y=[baselines[name]] * 2)
        for name in SHOWN_BASELINES
        if name in baselines
    ]
    place = "above" if best[-1] > band[-1].high else "inside"
    note = (
        f"Luck alone: the best of so many trials that are all as good as the median one, 10 to 90 %; noise of one "
        f"score {noise:.4f} ({source}). The best score is {place} that band."
    )
    if noise == 0:
        series = [each for each in series if each.name != "luck alone"]
        note = f"What luck alone would show is not drawn: the noise of one score is 0 ({source})."
    return ResultCurve(title="Search history", note=note, across="finished trial", up="selection score", series=series)


def pareto_curve(study: optuna.Study) -> ResultCurve:
    """Score against minutes: all finished trials, and those that no other one beats in both."""
    points = sorted(
        (t.user_attrs["wall_seconds"] / MINUTE, float(t.value or 0.0))
        for t in completed(study)
        if "wall_seconds" in t.user_attrs
    )
    front: list[tuple[float, float]] = []
    for minutes, score in points:
        if not front or score > front[-1][1]:
            front.append((minutes, score))
    return ResultCurve(
        title="Score against minutes",
        note="The line: trials that none is both faster and better than.",
        across="minutes",
        up="selection score",
        series=[
            Series(name="front", x=[m for m, _ in front], y=[s for _, s in front]),
            Series(name="trial", x=[m for m, _ in points], y=[s for _, s in points], is_scattered=True),
        ],
    )


def importance_table(ranking: Sequence[Importance], trials: int) -> ResultTable:
    """Which settings mattered."""
    rows: list[list[Cell]] = [
        [i.name, i.value, f"{i.low:.3f} to {i.high:.3f}", i.by_chance, "yes" if i.is_above_chance else "no"]
        for i in ranking[:SHOWN_IMPORTANCES]
    ]
    return ResultTable(
        title="Which settings mattered",
        note=f"Share of the variance of {trials} scores that a random forest gives to each, 90 % interval over trials "
        f"drawn again; by chance: what 95 % of settings that do nothing stay under.",
        columns=["setting", "share", "90 %", "by chance", "above chance"],
        rows=rows,
    )


def study_importances(study: optuna.Study, names: Sequence[str]) -> list[Importance]:
    """Importance of each dimension over the trials that ran to their end."""
    trials = completed(study)
    return importances([t.params for t in trials], [float(t.value or 0.0) for t in trials], names)


def progress_table(study: optuna.Study, trials: int, left_seconds: float, noise: float, note: str = "") -> ResultTable:
    """Trials and seconds that are left, and the gain to expect of them."""
    scores = [float(t.value or 0.0) for t in completed(study)]
    more = max(0, trials - len(finished(study)))
    rows: list[list[Cell]] = [
        ["trials finished", f"{len(finished(study))} of {trials}"],
        ["best score so far", max(scores, default=None)],
        ["remaining", format_seconds(left_seconds)],
        ["expected gain of the rest", expected_gain(scores, more, noise)],
        ["expected gain of 10 more", expected_gain(scores, 10, noise)],
        ["noise of one score", noise],
    ]
    return ResultTable(
        title="Study",
        note="Expected gain: of the best true score, were further trials like those so far; a guide, not a promise. "
        f"Unknown below {SPREAD_KNOWN_FROM} scores. {note}".strip(),
        columns=["", "value"],
        rows=rows,
    )


def finalists_table(finalists: Sequence[RetrainedFinalist], test: Mapping[str, Any] | None) -> ResultTable:
    """Each finalist: what the search saw, what new starting points gave, and the test."""
    rows: list[list[Cell]] = []
    for finalist in finalists:
        row: list[Cell] = [
            finalist.trial, finalist.searched_score, finalist.score,
            " ".join(f"{start.score:.3f}" for start in finalist.starts),
        ]  # fmt: skip
        if test is not None:
            own = test["finalists"][str(finalist.trial)]
            value, low, high = own["below_winner"]
            interval = "" if low is None else f" ({-high:+.3f} to {-low:+.3f})"
            gap = "winner" if value == low == high == 0 else f"{-value:+.3f}{interval}"
            row += [fmean(own["scores"]), gap]
        rows.append(row)
    return ResultTable(
        title="Finalists",
        note="Trained anew from several starting points; the winner is the highest mean on the selection rows. The "
        "test rows were scored after that, once. Test: mean over the starting points. Gap: that mean minus the "
        "winner's; an interval is 95 %, paired over rows.",
        columns=["trial", "in the search", "anew", "by start", *(["test, mean", "gap to the winner"] if test else [])],
        rows=rows,
    )


def test_table(test: Mapping[str, Any]) -> ResultTable:
    """The winner on the test rows beside the baselines."""
    figures = [name for name in test["metrics"] if "." not in name]
    rows: list[list[Cell]] = [[WINNER, *(test["metrics"][name] for name in figures), "–"]]
    for baseline, (value, low, high) in test["over_baselines"].items():
        rows.append(
            [baseline, *(test["metrics"][f"{baseline}.{name}"] for name in figures),
             f"{value:+.3f} ({low:+.3f} to {high:+.3f})"]
        )  # fmt: skip
    lead = test.get("lead", f"its {test['metric']} minus the baseline's")
    return ResultTable(
        title="Test, touched once",
        note=f"{test['rows']:,} rows that no trial, threshold or choice has seen. First row: the one starting point of "
        f"the winner that is exported; the finalists' table has the mean over all of them. Last column: "
        f"{lead}, 95 %, {test.get('interval', 'paired over rows')}.",
        columns=["", *figures, "its lead"],
        rows=rows,
    )


# pytest would collect it, by its name, from the tests that import it.
test_table.__test__ = False  # type: ignore[attr-defined]


def trials_document(trials: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """Trials as JSON."""
    return [
        {
            "number": t.number, "state": t.state.name.lower(), "score": t.value, "params": t.params,
            **{name: t.user_attrs[name] for name in NOTES if name in t.user_attrs},
        }
        for t in trials
    ]  # fmt: skip


def _median_seconds(values: Sequence[float]) -> str | None:
    return format_seconds(median(values)) if values else None


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
