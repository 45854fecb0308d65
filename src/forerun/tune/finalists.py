"""Which of the best trials can be trusted? They are retrained from several starting points, then judged once.

The score that made a trial a finalist is not used again: it was the highest of many, so it is too high. Each finalist
is trained anew with other seeds; the highest mean on the selection rows wins; only then are the test rows scored, once
for a study, which keeps the figures. An interrupted command goes on from there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from optuna.trial import FrozenTrial

from forerun.errors import ForerunError
from forerun.runs.run import enter_run, run_folder, start_training
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.train.best import load_judged
from forerun.tune.search import Search
from forerun.tune.study import completed
from forerun.tune.trial import FINISHED, TrialOrder

RUNS, TEST, OVERHEAD = "finalist_runs", "test", "finalist_seconds"


@dataclass(frozen=True)
class Start:
    """One training of a finalist, from one starting point (seed)."""

    seed: int
    run_id: str
    score: float
    """Score on the selection rows."""


@dataclass(frozen=True)
class RetrainedFinalist:
    """One of the best trials, trained anew."""

    trial: int
    searched_score: float
    """Score in the search: the highest of many, so too high."""
    overrides: tuple[str, ...]
    starts: tuple[Start, ...]

    @property
    def score(self) -> float:
        """Mean over the starting points."""
        return fmean(start.score for start in self.starts)

    @property
    def best_start(self) -> Start:
        """Starting point with the highest score on the selection rows."""
        return max(self.starts, key=lambda start: start.score)


def top_trials(search: Search, count: int) -> list[FrozenTrial]:
    """The `count` best trials by score, the earliest of equal ones; each point of the space once."""
    ranked = sorted(completed(search.study), key=lambda t: (-(t.value or 0.0), t.number))
    points: list[Mapping[str, Any]] = []
    distinct = []
    for trial in ranked:
        if trial.params not in points:
            points.append(trial.params)
            distinct.append(trial)
    return distinct[:count]


def train_finalists(
    search: Search, count: int, starts: int, on_progress: Callable[[str], None]
) -> list[RetrainedFinalist]:
    """Train the best trials anew, each from `starts` starting points; finished runs are taken as they are.

    Raises:
        ForerunError: a run failed.
    """
    finalists = []
    for trial in top_trials(search, count):
        trainings = []
        for seed in range(search.base.seed + 1, search.base.seed + 1 + starts):
            overrides = [*trial.user_attrs["overrides"], f"seed={seed}"]
            settings = settings_from(search.base.model_dump(), overrides)
            on_progress(f"finalist {trial.number}, starting point {seed}")
            run_id = _run(search, trial, settings)
            measurement = search.ledger.measurement(run_id)
            assert measurement is not None
            score, _ = search.recipe.searched_score(measurement.metrics, settings)
            trainings.append(Start(seed, run_id, score))
        finalists.append(
            RetrainedFinalist(trial.number, trial.value or 0.0, tuple(trial.user_attrs["overrides"]), tuple(trainings))
        )
    return finalists


def _run(search: Search, trial: FrozenTrial, settings: Settings) -> str:
    """Train one starting point to its end; returns the id of its run."""
    run_ids: dict[str, str] = dict(search.study.user_attrs.get(RUNS, {}))
    key = f"{trial.number}:{settings.seed}"
    if key not in run_ids:
        price = search.pricer.price(settings, search.costs())
        run_ids[key] = enter_run(price.settings, search.device, search.ledger, search.root)
        forecast = price.forecast.model_copy(update={"settings_hash": price.settings.hash})
        search.ledger.record_forecast(run_ids[key], forecast)
        # Before the process starts: a worker that is killed and started again resumes this run.
        search.study.set_user_attr(RUNS, run_ids)
    if search.ledger.measurement(run_ids[key]) is None:
        order = TrialOrder(ledger=search.ledger_url, run_id=run_ids[key], root=str(search.root))
        code = search.wait_for(order)
        if code != FINISHED:
            raise ForerunError(f"Finalist {key} ended with exit code {code}; see run {run_ids[key]} in the ledger.")
    return run_ids[key]


def winner(finalists: Sequence[RetrainedFinalist]) -> RetrainedFinalist:
    """The highest mean on the selection rows; the test rows have no say."""
    return max(finalists, key=lambda finalist: (finalist.score, -finalist.trial))


def test_once(search: Search, finalists: Sequence[RetrainedFinalist]) -> dict[str, Any]:
    """Score the test rows with every finalist's models and the baselines; a study does that once, and keeps it."""
    if TEST in search.study.user_attrs:
        return search.study.user_attrs[TEST]
    module: Any = search.recipe
    scores: dict[str, list[Any]] = {}
    experiment = None
    for finalist in finalists:
        for start in finalist.starts:
            row = search.ledger.run(start.run_id)
            experiment = module.load_experiment(settings_from(row.settings))
            training = start_training(experiment, search.device, run_folder(row))
            if not load_judged(training.folder, training.step):
                raise ForerunError(f"Run {row.id} has no checkpoint in {training.folder}; it cannot be tested.")
            scores.setdefault(str(finalist.trial), []).append(module.held_out_scores(experiment, training.step))
    assert experiment is not None
    best = winner(finalists)
    document = module.final_comparison(
        experiment, scores, str(best.trial), [start.seed for start in best.starts].index(best.best_start.seed)
    )
    search.study.set_user_attr(TEST, document)
    return document


# pytest would collect it, by its name, from the tests that import it.
test_once.__test__ = False  # type: ignore[attr-defined]
