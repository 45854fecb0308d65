"""How does a worker search? Propose, price, refuse or run, tell; until trials, time or money are at their end.

One worker runs one trial at a time, in processes of their own. Killed at any moment and started again with the same
command it goes on with the trial that it was at; several workers share a study by its database.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import optuna
import psutil
from optuna.trial import FrozenTrial

from forerun.errors import NothingFits
from forerun.hardware.catalogue import Device
from forerun.ledger.store import Ledger
from forerun.records import Range
from forerun.runs.recipe import Experiment
from forerun.runs.run import enter_run
from forerun.runs.search_space import Dimension, Searchable
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.tune import study as studies
from forerun.tune.pricing import Price, Pricer, TrialCosts
from forerun.tune.proposals import suggest
from forerun.tune.trial import FINISHED, INTERRUPTED, OUT_OF_MEMORY, PRUNED, PRUNED_EVENT, TrialOrder
from forerun.units import HOUR

SIGN_SECONDS = 20.0
"""Seconds between signs of life of a worker."""
MOST_REFUSALS = 30
"""Refusals in a row after which nothing in this space is taken to fit."""


@dataclass(frozen=True, kw_only=True)
class SearchBudget:
    """Trials, seconds and dollars after which a search stops."""

    trials: int
    deadline_seconds: float | None = None
    """Seconds from the start of this command."""
    budget: float | None = None
    """Dollars, over the whole study."""
    price_per_hour: float | None = None
    reserved_trials: int = 0
    """Runs that must still fit after the last trial: finalists and their starting points."""


class SearchListener(Protocol):
    """Callbacks for each trial of a search; the command line draws them."""

    def priced(self, number: int, point: Mapping[str, Any], price: Price) -> None:
        """A trial is proposed and priced; nothing has run."""
        ...

    def ended(self, trial: FrozenTrial, search: "Search") -> None:
        """A trial is over, or was refused."""
        ...


class Silence:
    """Listener that does nothing."""

    def priced(self, number: int, point: Mapping[str, Any], price: Price) -> None:
        """Do nothing."""

    def ended(self, trial: FrozenTrial, search: "Search") -> None:
        """Do nothing."""


@dataclass
class Search:
    """One worker's share of a study."""

    study: optuna.Study
    recipe: Searchable
    experiment: Experiment
    """The settings that all trials start from, with their data loaded."""
    base: Settings
    space: Sequence[Dimension]
    pricer: Pricer
    device: Device
    ledger: Ledger
    ledger_url: str
    storage: str
    root: Path
    pruner: studies.PrunerName
    limits: SearchBudget
    listener: SearchListener = field(default_factory=Silence)
    clock: Callable[[], float] = time.monotonic
    stopped_by: str = ""
    """Why the search ended."""

    def __post_init__(self) -> None:
        self.start_seconds = self.clock()

    def run(self) -> None:
        """Go on until a limit is reached.

        Raises:
            NothingFits: trial after trial is refused.
            KeyboardInterrupt: stopped on request; the trial in progress can be resumed.
        """
        refused = 0
        while True:
            while not studies.is_settled(self.study):
                time.sleep(0.2)
            waiting = studies.waiting_trials(self.study)
            if waiting:
                trial = studies.claim(self.study, waiting[0].number)
                if trial is None:
                    continue
            elif self._is_done():
                self.stopped_by = self.stopped_by or f"{self.limits.trials} trials"
                return
            else:
                trial = self.study.ask()
                studies.own(trial)
            price = self._price(trial)
            if price.refusal is not None:
                self._refuse(trial, price)
                refused += 1
                if refused >= MOST_REFUSALS:
                    raise NothingFits(
                        f"{refused} trials in a row do not fit {self.device.name}; the last one {price.refusal}. Lower "
                        f"batch.micro_batch_size or batch.sequence_length with --set."
                    )
                continue
            refused = 0
            if self._would_end_too_late(price):
                return
            self._run(trial, price)

    def _is_done(self) -> bool:
        """Enough trials are over, or are being run by others."""
        running = [t for t in self.study.get_trials(deepcopy=False) if not t.state.is_finished()]
        return len(studies.finished(self.study)) + len(running) >= self.limits.trials

    def _price(self, trial: optuna.Trial) -> Price:
        """Propose values, where they are not there yet, and price them."""
        point = suggest(trial, self.space)
        overrides = [*self.recipe.TRIAL, *self.recipe.search_overrides(point, self.experiment)]
        settings = settings_from(self.base.model_dump(), overrides)
        price = self.pricer.price(settings, self.costs(), limit_bytes=self.memory_limit())
        if "price" not in self._notes(trial):
            trial.set_user_attr("memory_bytes", price.forecast.memory.device_bytes.expected)
            trial.set_user_attr("traced", price.is_traced)
            trial.set_user_attr("pricing_seconds", price.pricing_seconds)
            trial.set_constraint("memory", price.excess)
            trial.set_user_attr("price", price.seconds.model_dump())
        trial.set_user_attr("overrides", overrides)
        self.listener.priced(trial.number, point, price)
        return price

    def memory_limit(self) -> float | None:
        """The least memory forecast of a trial that ran out of it."""
        notes_of_trials = [t.user_attrs for t in self.study.get_trials(deepcopy=False)]
        return min((n["memory_bytes"] for n in notes_of_trials if n.get("outcome") == "out of memory"), default=None)

    def costs(self) -> TrialCosts:
        """Seconds of the trials that ran to their end in one go."""
        notes_of_trials = [t.user_attrs for t in studies.in_one_go(self.study)]
        return TrialCosts(
            tuple(notes["overhead_seconds"] for notes in notes_of_trials if "overhead_seconds" in notes),
            tuple(notes["wall_seconds"] / notes["price"]["expected"] for notes in notes_of_trials),
        )

    def expected_price(self) -> float:
        """Expected seconds of the next trial: the mean of earlier ones, by what they took or else their price."""
        spent = [
            t.user_attrs.get("wall_seconds", t.user_attrs["price"]["expected"])
            for t in self.study.get_trials(deepcopy=False)
            if "price" in t.user_attrs and t.user_attrs.get("outcome") != "refused"
        ]
        return fmean(spent) if spent else 0.0

    def spent_seconds(self) -> float:
        """Seconds that all workers spent on all trials."""
        return sum(t.user_attrs.get("wall_seconds", 0.0) for t in self.study.get_trials(deepcopy=False))

    def _would_end_too_late(self, price: Price) -> bool:
        """Whether this trial, and the finalists after it, could not be paid for or not be done in time."""
        finals = self.limits.reserved_trials * max(price.seconds.expected, self.expected_price())
        need = price.seconds.conservative + finals
        if self.limits.deadline_seconds is not None:
            left = self.limits.deadline_seconds - (self.clock() - self.start_seconds)
            if need > left:
                self.stopped_by = f"the deadline: {left:.0f} s are left, a trial and the finalists need {need:.0f} s"
                return True
        if self.limits.budget is not None and self.limits.price_per_hour is not None:
            cost = (self.spent_seconds() + need) / HOUR * self.limits.price_per_hour
            if cost > self.limits.budget:
                self.stopped_by = f"the budget: with a trial and the finalists the study would cost ${cost:.2f}"
                return True
        return False

    def _refuse(self, trial: optuna.Trial, price: Price) -> None:
        studies.tell(self.study, trial, None, "refused", price.refusal or "")
        self._say_ended(trial.number)

    def _run(self, trial: optuna.Trial, price: Price) -> None:
        """Every fold of a trial, then its score."""
        scores: list[tuple[float, float]] = []
        start = time.monotonic()
        trial.set_user_attr("attempts", self._notes(trial).get("attempts", 0) + 1)
        epochs = max(1, round(self._settings(trial, 0).schedule.epochs))
        for fold in range(self.pricer.folds):
            settings = self._settings(trial, fold)
            run_id = self._run_id(trial, settings, fold, price)
            try:
                code = self._finish_run(trial, run_id, fold * epochs, [score for score, _ in scores])
            except KeyboardInterrupt:
                self._took(trial, time.monotonic() - start)
                raise
            if code != FINISHED:
                self._end_badly(trial, code, run_id, time.monotonic() - start)
                return
            measurement = self.ledger.measurement(run_id)
            assert measurement is not None
            scores.append(self.recipe.searched_score(measurement.metrics, settings))
        seconds = self._took(trial, time.monotonic() - start)
        measurements = [self.ledger.measurement(run) for run in self._runs(trial).values()]
        run_seconds = sum(m.run.seconds for m in measurements if m is not None)
        trial.set_user_attr("overhead_seconds", max(0.0, seconds - run_seconds))
        trial.set_user_attr("standard_error", fmean(error for _, error in scores) / len(scores) ** 0.5)
        studies.tell(self.study, trial, fmean(score for score, _ in scores), "finished")
        self._say_ended(trial.number)

    def _settings(self, trial: optuna.Trial, fold: int) -> Settings:
        overrides = self._notes(trial)["overrides"]
        folds = [f"recipe.fold={fold}"] if self.pricer.folds > 1 else []
        return settings_from(self.base.model_dump(), [*overrides, *folds])

    def _runs(self, trial: optuna.Trial) -> dict[str, str]:
        return dict(self._notes(trial).get("runs", {}))

    def _notes(self, trial: optuna.Trial) -> dict[str, Any]:
        return self.study.get_trials(deepcopy=False)[trial.number].user_attrs

    def _run_id(self, trial: optuna.Trial, settings: Settings, fold: int, price: Price) -> str:
        """The run of a fold, entered in the ledger with its forecast before it starts."""
        runs = self._runs(trial)
        if str(fold) not in runs:
            is_cut = self.pricer.folds > 1  # then sizes differ from fold to fold
            settings = self.pricer.ask(settings).settings if is_cut else price.settings
            run_id = enter_run(settings, self.device, self.ledger, self.root)
            forecast = price.forecast.model_copy(update={"settings_hash": settings.hash})
            self.ledger.record_forecast(run_id, forecast)
            runs[str(fold)] = run_id
            trial.set_user_attr("runs", runs)
        return runs[str(fold)]

    def _finish_run(self, trial: optuna.Trial, run_id: str, epochs_before: int, scores: list[float]) -> int:
        """Run or resume one fold to its end; returns the exit code of `trial.py`."""
        if self.ledger.measurement(run_id) is not None:
            return FINISHED
        if self.ledger.run(run_id).state == PRUNED_EVENT:
            return PRUNED
        order = TrialOrder(
            ledger=self.ledger_url, run_id=run_id, root=str(self.root), storage=self.storage,
            study=self.study.study_name, number=trial.number, pruner=self.pruner, epochs_before=epochs_before,
            scores_before=tuple(scores),
        )  # fmt: skip
        return self.wait_for(order, trial)

    def wait_for(self, order: TrialOrder, trial: optuna.Trial | None = None) -> int:
        """Start the process of a run and wait for its end, giving signs of life.

        Raises:
            KeyboardInterrupt: it was stopped on request.
        """
        process = subprocess.Popen(order.command(), stdout=subprocess.DEVNULL)
        if trial is not None:
            created = psutil.Process(process.pid).create_time()
            # With the time of creation: the system gives process numbers again.
            trial.set_user_attr("process", vars(studies.Owner(studies.Owner.here().host, process.pid, created)))
        while True:
            try:
                code = process.wait(timeout=SIGN_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if trial is not None:
                    trial.set_user_attr("sign", time.time())
            except KeyboardInterrupt:  # the terminal sends Ctrl-C to the child too, which saves a checkpoint
                process.wait()
                raise
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        # Popen: -9 is death by SIGKILL, which the kernel's out-of-memory killer sends.
        return OUT_OF_MEMORY if code == -9 else code

    def _took(self, trial: optuna.Trial, seconds: float) -> float:
        """Add to the seconds that a trial took over all attempts; returns their sum."""
        before = self._notes(trial).get("wall_seconds", 0.0)
        trial.set_user_attr("wall_seconds", before + seconds)
        return before + seconds

    def _end_badly(self, trial: optuna.Trial, code: int, run_id: str, seconds: float) -> None:
        self._took(trial, seconds)
        outcome = {PRUNED: "pruned", OUT_OF_MEMORY: "out of memory"}.get(code, "failed")
        reason = {"pruned": "", "out of memory": "the process had no memory left"}.get(outcome, f"exit code {code}")
        studies.tell(self.study, trial, None, outcome, reason or f"run {run_id}")
        self._say_ended(trial.number)

    def _say_ended(self, number: int) -> None:
        self.listener.ended(self.study.get_trials(deepcopy=False)[number], self)

    def remaining(self) -> Range:
        """Seconds that the trials still to run would take."""
        left = max(0, self.limits.trials - len(studies.finished(self.study)))
        prices = [t.user_attrs["price"] for t in self.study.get_trials(deepcopy=False) if "price" in t.user_attrs]
        if not prices or not left:
            return Range(optimistic=0.0, expected=0.0, conservative=0.0)
        spread = {name: fmean(p[name] for p in prices) / fmean(p["expected"] for p in prices) for name in prices[0]}
        return Range(**{name: left * self.expected_price() * share for name, share in spread.items()})
