"""How do workers share a study? Facts, trials and owners are in a database: SQLite, or PostgreSQL for many machines.

Everything that must not differ between trials is written into the study when it begins, and compared whenever a worker
joins or a search goes on. A trial's notes (`user_attrs`) say what it costs, who runs it, and what became of it.
"""

import os
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import psutil
import sqlalchemy as sa
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

from forerun.errors import InvalidSettings

PrunerName = Literal["median", "hyperband", "none"]
STARTUP_TRIALS, WARMUP_EPOCHS = 5, 1
"""Trials that nothing prunes, and epochs after which any may be."""
SILENT_SECONDS = 600.0
"""After so long without a sign, a worker of another machine counts as gone."""
GRACE_SECONDS = 120.0
"""How long to wait for the process of a trial whose worker was killed."""
SETTLING_SECONDS = 5.0
"""How long a trial may run without an owner: a worker begins it first and owns it then."""
FIXED = "fixed"
BUSY_SECONDS = 60
"""How long SQLite waits for another writer before it raises."""
TABLE_ATTEMPTS = 4


@dataclass(frozen=True)
class Owner:
    """A process that runs a trial."""

    host: str
    pid: int
    created: float

    @classmethod
    def here(cls) -> "Owner":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    def is_alive(self, last_sign: float) -> bool:
        """Whether the process still runs; on another machine, whether it gave a sign lately."""
        if self.host != socket.gethostname():
            return time.time() - last_sign < SILENT_SECONDS
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1
        except psutil.NoSuchProcess:
            return False


def open_study(
    url: str, name: str, fixed: Mapping[str, Any] | None, sampler: BaseSampler | None, pruner: PrunerName = "none"
) -> optuna.Study:
    """The study `name` in the database at `url`; made with `fixed` where it is not there (None only joins).

    Raises:
        InvalidSettings: the database cannot be opened, or the study holds trials of something else.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage = _storage(url)
        if fixed is None:
            return optuna.load_study(study_name=name, storage=storage, sampler=sampler, pruner=make_pruner(pruner))
        study = optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, pruner=make_pruner(pruner), direction="maximize",
            load_if_exists=True,
        )  # fmt: skip
    except (SQLAlchemyError, ImportError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise InvalidSettings(
            f"--storage: the study {name!r} at {url!r} cannot be opened: {str(error).splitlines()[0]} Use a SQLAlchemy "
            f"URL such as sqlite:///runs/tune.sqlite or postgresql+psycopg://user@host/name."
        ) from error
    recorded = study.user_attrs.get(FIXED)
    if recorded is None:
        study.set_user_attr(FIXED, dict(fixed))
    elif recorded != dict(fixed):
        different = sorted(key for key in {*recorded, *fixed} if recorded.get(key) != fixed.get(key))
        raise InvalidSettings(
            f"--study: {name!r} was begun with other settings, and its trials cannot be compared with new ones; "
            f"different: {', '.join(f'{key} (was {recorded.get(key)!r})' for key in different)}. Go on with the same "
            f"command, or name another study."
        )
    return study


def close_study(study: optuna.Study) -> None:
    """Close the connections to the study's database."""
    storage: Any = study._storage  # optuna has no public way; a cached storage holds the engine in `_backend`
    storage.remove_session()
    getattr(storage, "_backend", storage).engine.dispose()


def make_pruner(name: PrunerName) -> BasePruner:
    """Pruner that stops trials that lag behind, never the first ones and never before an epoch."""
    if name == "median":
        return MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=WARMUP_EPOCHS)
    return HyperbandPruner(min_resource=1, max_resource="auto") if name == "hyperband" else NopPruner()


def _storage(url: str) -> optuna.storages.RDBStorage:
    """The database, its tables made; another worker may make them in the same moment, and then one of both fails."""
    for attempt in range(TABLE_ATTEMPTS):
        try:
            return optuna.storages.RDBStorage(_with_folder(url), engine_kwargs=_arguments(url))
        except (IntegrityError, ProgrammingError):
            if attempt == TABLE_ATTEMPTS - 1:
                raise
            time.sleep(1.0 + attempt)
    raise AssertionError("the last attempt returns or raises")


def _with_folder(url: str) -> str:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    return url


def _arguments(url: str) -> dict[str, Any]:
    return {"connect_args": {"timeout": BUSY_SECONDS}} if url.startswith("sqlite") else {"pool_pre_ping": True}


def waiting_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were begun and that nobody runs any more, oldest first."""
    return [t for t in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if not is_owned(t)]


def is_settled(study: optuna.Study) -> bool:
    """Whether every trial that runs says who runs it, or has not for long: it is begun before it is owned."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        begun = trial.datetime_start
        if "owner" not in trial.user_attrs and begun is not None and time.time() - begun.timestamp() < SETTLING_SECONDS:
            return False
    return True


def is_owned(trial: FrozenTrial) -> bool:
    """Whether a living process runs the trial."""
    owner = trial.user_attrs.get("owner")
    if owner is None:
        return False
    return Owner(**owner).is_alive(float(trial.user_attrs.get("sign", 0.0)))


def claim(study: optuna.Study, number: int) -> optuna.Trial | None:
    """Take over a trial that nobody runs; None when another worker took it in the same moment."""
    frozen = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
    trial = optuna.trial.Trial(study, frozen._trial_id)
    own(trial)
    # Two workers may both have written: the database keeps the last owner, and only that one goes on.
    again = next(t for t in study.get_trials(deepcopy=False) if t.number == number)
    mine = vars(Owner.here())
    if again.state != TrialState.RUNNING or again.user_attrs.get("owner") != mine:
        return None
    _wait_for(again.user_attrs.get("process"))
    return trial


def own(trial: optuna.Trial) -> None:
    """Note that this process runs the trial, now."""
    trial.set_user_attr("sign", time.time())
    trial.set_user_attr("owner", vars(Owner.here()))


def _wait_for(process: Mapping[str, Any] | None) -> None:
    """Wait until the process that a killed worker left has ended itself."""
    if process is None:
        return
    child, until = Owner(**process), time.time() + GRACE_SECONDS
    while child.host == socket.gethostname() and child.is_alive(0.0) and time.time() < until:
        time.sleep(0.2)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that ran to an end, pruned or not; not those that were refused or failed."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return [t for t in study.get_trials(deepcopy=False, states=states) if t.user_attrs.get("outcome") != "refused"]


def completed(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score, in order of their numbers."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def in_one_go(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score whose worker was not stopped meanwhile: what they took is known."""
    return [t for t in completed(study) if t.user_attrs.get("wall_seconds") and t.user_attrs.get("attempts", 1) == 1]


def tell(study: optuna.Study, trial: optuna.Trial, score: float | None, outcome: str, reason: str = "") -> None:
    """End a trial: with a score, or as pruned (`pruned`, `refused`, `out of memory`), or as failed."""
    trial.set_user_attr("outcome", outcome)
    if reason:
        trial.set_user_attr("reason", reason)
    state = TrialState.COMPLETE if score is not None else TrialState.FAIL if outcome == "failed" else TrialState.PRUNED
    # optuna/study/_tell.py (5.0): a pruned trial takes its last reported score as its value.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        study.tell(trial, score, state=state)


def same_trials(one: Sequence[FrozenTrial], other: Sequence[FrozenTrial]) -> bool:
    """Whether two studies tried the same with the same outcome."""
    return [(t.number, t.params, t.value, t.state) for t in one] == [
        (t.number, t.params, t.value, t.state) for t in other
    ]
