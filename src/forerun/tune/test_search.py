"""The loop of a worker, with trials that take no time."""

from types import SimpleNamespace

import optuna
import pytest

from forerun.errors import NothingFits
from forerun.records import Range
from forerun.runs.search_space import Dimension
from forerun.settings.load import settings_from
from forerun.tune import study as studies
from forerun.tune.pricing import Price
from forerun.tune.proposals import NumberedProposals
from forerun.tune.search import Search, SearchBudget, Silence
from forerun.tune.trial import OUT_OF_MEMORY

BASE = settings_from({"name": "t", "workload": "masked-lm", "model": {"name": "tiny-bert"}, "data": {"examples": 8}})
SPACE = [Dimension(name="batch.sequence_length", values=(8, 16, 32, 64))]
RECIPE = SimpleNamespace(
    TRIAL=(), search_overrides=lambda point, experiment: [f"{name}={value}" for name, value in point.items()]
)


class Prices:
    """A trial takes as many seconds and bytes as its texts are long."""

    folds = 1

    def __init__(self, capacity=1000):
        self.capacity = capacity

    def price(self, settings, paid, *, limit_bytes=None):
        length = settings.batch.sequence_length
        device_bytes = SimpleNamespace(expected=length, conservative=length)
        forecast = SimpleNamespace(memory=SimpleNamespace(device_bytes=device_bytes, capacity_bytes=self.capacity))
        refusal = "too long" if length > self.capacity or (limit_bytes is not None and length >= limit_bytes) else None
        seconds = Range(optimistic=length, expected=length, conservative=length)
        return Price(settings, forecast, seconds, False, 0.0, refusal)


class Quick(Search):
    """Trials that run out of memory at 64, else score by their length and take as long on a clock that is made up."""

    now = 0.0

    def _run(self, trial, price):
        length = price.settings.batch.sequence_length
        self.now += length
        if length == 64:
            self._end_badly(trial, OUT_OF_MEMORY, "run", length)
            return
        self._took(trial, length)
        studies.tell(self.study, trial, length / 100, "finished")
        self._say_ended(trial.number)


def search(capacity=1000, space=SPACE, start=8, **limits):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = NumberedProposals(space, {space[0].name: start}, "random", 0)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    worker = Quick(
        study=study, recipe=RECIPE, experiment=None, base=BASE, space=space, pricer=Prices(capacity),
        device=SimpleNamespace(name="card"), ledger=None, ledger_url="", storage="", root=None, pruner="none",
        limits=SearchBudget(**{"trials": 6, **limits}), listener=Silence(),
    )  # fmt: skip
    worker.clock = lambda: worker.now
    worker.start_seconds = 0.0
    return worker


def outcomes(worker):
    return [t.user_attrs.get("outcome") for t in worker.study.trials]


def test_trials_are_run_until_there_are_enough_and_a_second_start_adds_none():
    worker = search(trials=4, space=[Dimension(name="batch.sequence_length", values=(8, 16))])
    worker.run()
    assert outcomes(worker) == ["finished"] * 4
    worker.run()
    assert len(worker.study.trials) == 4
    assert worker.remaining().expected == 0


def test_what_does_not_fit_is_refused_before_it_runs_and_does_not_count():
    worker = search(capacity=20)
    worker.run()
    lengths = {t.params["batch.sequence_length"] for t in studies.finished(worker.study)}
    assert lengths <= {8, 16}
    assert outcomes(worker).count("finished") == 6
    assert "refused" in outcomes(worker)
    refused = next(t for t in worker.study.trials if t.user_attrs["outcome"] == "refused")
    assert refused.constraints["memory"] > 0
    assert "wall_seconds" not in refused.user_attrs


def test_running_out_of_memory_is_a_pruned_trial_and_teaches():
    worker = search(trials=25)
    worker.run()
    endings = outcomes(worker)
    assert endings.count("out of memory") == 1
    assert worker.memory_limit() == 64
    assert "refused" in endings[endings.index("out of memory") :]


def test_a_space_in_which_nothing_fits_is_an_error():
    with pytest.raises(NothingFits, match="do not fit card"):
        search(capacity=1).run()


def test_a_deadline_keeps_time_for_the_finalists():
    worker = search(trials=100, deadline_seconds=120, reserved_trials=2)
    worker.run()
    assert "deadline" in worker.stopped_by
    last = worker.study.trials[-1]
    assert last.state == optuna.trial.TrialState.RUNNING, "the trial that was priced is the next one"
    assert worker.now + 3 * last.user_attrs["price"]["expected"] > 120
    assert worker.now <= 120


def test_a_budget_is_for_all_workers_of_a_study():
    worker = search(trials=100, budget=1.0, price_per_hour=36.0)  # a cent a second
    worker.run()
    assert "budget" in worker.stopped_by
    assert worker.spent_seconds() <= 100
    again = search(trials=100, budget=1.0, price_per_hour=36.0)
    again.study = worker.study
    again.run()
    assert again.spent_seconds() == worker.spent_seconds()


def test_what_is_left_is_priced_by_what_trials_took():
    worker = search(trials=3, space=[Dimension(name="batch.sequence_length", values=(8, 16))])
    worker.run()
    worker.limits = SearchBudget(trials=5)
    assert worker.remaining().expected == pytest.approx(2 * worker.expected_price())
    assert 8 <= worker.expected_price() <= 16
