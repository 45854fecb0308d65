"""From the best trials to a model that can be trusted: retrained from several starting points, then judged once.

The score that made a trial a finalist is not used again: it was the highest of many, so it is too high. Each finalist
is trained anew with other seeds; the highest mean on the selection rows wins; only then are the test rows scored, once
for a study, and what was found is kept with it. Interrupted, it goes on.
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
from forerun.train.checkpoint import load_newest
from forerun.tune.search import Search
from forerun.tune.study import completed
from forerun.tune.trial import FINISHED, TrialOrder

RUNS, TEST, OVERHEAD = "finalist_runs", "test", "finalist_seconds"


@dataclass(frozen=True)
class Start:
    """One finalist trained from one starting point."""

    seed: int
    run_id: str
    score: float
    """On the selection rows."""


@dataclass(frozen=True)
class RetrainedFinalist:
    """One of the best trials, trained anew."""

    trial: int
    searched_score: float
    """That the search saw."""
    overrides: tuple[str, ...]
    starts: tuple[Start, ...]

    @property
    def score(self) -> float:
        """Mean over the starting points."""
        return fmean(start.score for start in self.starts)

    @property
    def best_start(self) -> Start:
        """Highest on the selection rows."""
        return max(self.starts, key=lambda start: start.score)


def top_trials(search: Search, count: int) -> list[FrozenTrial]:
    """The best trials by score, the earliest of equal ones; each point of the space once."""
    ranked = sorted(completed(search.study), key=lambda t: (-(t.value or 0.0), t.number))
    seen: list[Mapping[str, Any]] = []
    kept = []
    for trial in ranked:
        if trial.params not in seen:
            seen.append(trial.params)
            kept.append(trial)
    return kept[:count]


def train_finalists(search: Search, count: int, starts: int, said: Callable[[str], None]) -> list[RetrainedFinalist]:
    """Train the best trials anew, each from `starts` starting points; what is done already is taken as it is.

    Raises:
        ForerunError: a run failed.
    """
    found = []
    for trial in top_trials(search, count):
        trained = []
        for seed in range(search.base.seed + 1, search.base.seed + 1 + starts):
            overrides = [*trial.user_attrs["overrides"], f"seed={seed}"]
            settings = settings_from(search.base.model_dump(), overrides)
            said(f"finalist {trial.number}, starting point {seed}")
            run_id = _run(search, trial, settings)
            measured = search.ledger.measurement(run_id)
            assert measured is not None
            score, _ = search.recipe.searched_score(measured.metrics, settings)
            trained.append(Start(seed, run_id, score))
        found.append(
            RetrainedFinalist(trial.number, trial.value or 0.0, tuple(trial.user_attrs["overrides"]), tuple(trained))
        )
    return found


def _run(search: Search, trial: FrozenTrial, settings: Settings) -> str:
    """The run of one starting point, trained to its end; its id."""
    known: dict[str, str] = dict(search.study.user_attrs.get(RUNS, {}))
    key = f"{trial.number}:{settings.seed}"
    if key not in known:
        price = search.pricer.price(settings, search.paid())
        known[key] = enter_run(price.settings, search.device, search.ledger, search.root)
        forecast = price.forecast.model_copy(update={"settings_hash": price.settings.hash})
        search.ledger.record_forecast(known[key], forecast)
        search.study.set_user_attr(RUNS, known)
    if search.ledger.measurement(known[key]) is None:
        order = TrialOrder(ledger=search.ledger_url, run_id=known[key], root=str(search.root))
        code = search.wait_for(order)
        if code != FINISHED:
            raise ForerunError(f"Finalist {key} ended with exit code {code}; see run {known[key]} in the ledger.")
    return known[key]


def winner(finalists: Sequence[RetrainedFinalist]) -> RetrainedFinalist:
    """The highest mean on the selection rows; the test rows have no say."""
    return max(finalists, key=lambda finalist: (finalist.score, -finalist.trial))


def test_once(search: Search, finalists: Sequence[RetrainedFinalist]) -> dict[str, Any]:
    """Score the test rows with every finalist's models and the baselines; a study does that once, and keeps it."""
    if TEST in search.study.user_attrs:
        return search.study.user_attrs[TEST]
    module: Any = search.recipe
    scores: dict[str, list[Any]] = {}
    opened = None
    for finalist in finalists:
        for start in finalist.starts:
            row = search.ledger.run(start.run_id)
            opened = module.load_experiment(settings_from(row.settings))
            training = start_training(opened, search.device, run_folder(row))
            if load_newest(training.folder, training.step) is None:
                raise ForerunError(f"Run {row.id} has no checkpoint in {training.folder}; it cannot be tested.")
            scores.setdefault(str(finalist.trial), []).append(module.held_out_scores(opened, training.step))
    assert opened is not None
    best = winner(finalists)
    document = module.final_comparison(
        opened, scores, str(best.trial), [start.seed for start in best.starts].index(best.best_start.seed)
    )
    search.study.set_user_attr(TEST, document)
    return document


test_once.__test__ = False  # type: ignore[attr-defined]
