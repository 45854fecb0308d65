"""The ledger: every run, its forecast, its steps, its measurement and its verdict; only ever added to.

SQLite by default, any SQLAlchemy URL for a team. Rows are never changed or removed: the state of a run is its
latest event. Several processes may write at once; SQLite waits for its lock. Documents are kept as JSON.
"""

import datetime as dt
import secrets
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, IntegrityError, NoSuchModuleError, OperationalError

from forerun.errors import LedgerConflict, LedgerNotWritten, RunNotFound, UserNote, nearest
from forerun.experience import DeviceCalibration, StepObservation
from forerun.ledger.damage import aside_if_damaged
from forerun.ledger.journal import Journals, RebuiltRuns, rebuild
from forerun.ledger.place import default_url as default_url
from forerun.ledger.tables import (
    BUSY_SECONDS,
    CALIBRATIONS,
    DOCUMENTS,
    EVENTS,
    METADATA,
    OBSERVATIONS,
    RUNS,
    STEPS,
    create_tables,
)
from forerun.records import Forecast, Measurement, Record, StepReport, Verdict

ID_ATTEMPTS = 16
STEPS_AT_ONCE = 50
"""Step reports wait in memory until this many are there; `flush` and `close` write them at once."""


class LedgerWarning(UserNote):
    """Steps could not be entered yet; the run goes on."""


class RunRow(Record):
    """One run as listed. `state` is the kind of its latest event."""

    id: str
    name: str
    workload: str
    gpu: str
    settings_hash: str
    settings: dict[str, Any]
    folder: str
    versions: dict[str, str]
    started_at: str
    state: str


@dataclass(frozen=True)
class OutcomeRow:
    """Forecast and measurement of a finished run, or of a step that a user measured elsewhere (no `run_id`)."""

    run_id: str
    settings: dict[str, Any]
    forecast: Forecast
    measurement: Measurement | StepObservation


def open_ledger(url: str) -> "Ledger":
    """Open the ledger at a SQLAlchemy URL, creating it when it is not there; a damaged SQLite file is put aside.

    Raises:
        LedgerConflict: it cannot be opened, or a newer version of Forerun wrote it.
    """
    try:
        parsed = sa.make_url(url)
        old, is_sqlite = None, parsed.get_backend_name() == "sqlite"
        if is_sqlite and parsed.database not in (None, "", ":memory:"):
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            old = aside_if_damaged(Path(str(parsed.database)))
        engine = sa.create_engine(parsed, **({"connect_args": {"timeout": BUSY_SECONDS}} if is_sqlite else {}))
        create_tables(engine)
        if old is not None:
            old.read_back(engine, METADATA)
    except (ArgumentError, NoSuchModuleError, DatabaseError, OSError, ModuleNotFoundError) as error:
        raise LedgerConflict(
            f"The ledger {_without_password(url)!r} cannot be opened: {str(error).splitlines()[0].rstrip('.')}. "
            f"Set FORERUN_LEDGER to a SQLAlchemy URL such as sqlite:////path/ledger.sqlite."
        ) from error
    return Ledger(engine)


def _without_password(url: str) -> str:
    """A URL for a message; what cannot be taken apart is shown up to its scheme."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url if "@" not in url else f"{url.partition(':')[0]}:…"


class Ledger:
    """An open ledger; close it, or use it as a context manager, so that waiting steps are written."""

    def __init__(self, engine: sa.Engine):
        self._engine = engine
        self._waiting: list[dict[str, Any]] = []
        self._attempts: dict[str, int] = {}
        self._journals = Journals(engine)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LedgerNotWritten:
            if error is None:  # else that one is what people must hear
                raise

    def close(self) -> None:
        """Write what waits and let go of the database."""
        self.flush()
        self._engine.dispose()

    def start_run(
        self,
        *,
        name: str,
        workload: str,
        settings: dict[str, Any],
        settings_hash: str,
        gpu: str,
        folder: str,
        versions: dict[str, str],
    ) -> str:
        """Enter a new run; returns its id, which sorts by time."""
        now = dt.datetime.now(dt.UTC)
        row = {
            "name": name, "workload": workload, "settings": settings, "settings_hash": settings_hash,
            "gpu": gpu, "folder": folder, "versions": versions, "started_at": now.isoformat(timespec="seconds"),
        }  # fmt: skip
        for attempt in range(ID_ATTEMPTS):
            run_id = f"{now:%Y%m%d-%H%M}-{secrets.token_hex(2)}"
            try:
                self._write(RUNS, [{"id": run_id, **row}], f"run {run_id}")
            except LedgerConflict:  # 300 runs of one minute have two of one id every other time
                if attempt == ID_ATTEMPTS - 1:
                    raise
            else:
                self.record_event(run_id, "started")
                return run_id
        raise AssertionError("the last attempt returns or raises")

    def record_event(self, run_id: str, kind: str, note: str = "") -> None:
        """Note that something happened to a run: resumed, interrupted, failed, finished, verified."""
        self.flush()
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._write(EVENTS, [{"run_id": run_id, "at": at, "kind": kind, "note": note}], kind)

    def record_forecast(self, run_id: str, forecast: Forecast) -> None:
        """Keep the forecast of a run; there is one."""
        self._document(run_id, "forecast", "", forecast.model_dump(mode="json", by_alias=True))

    def record_measurement(self, run_id: str, measurement: Measurement) -> None:
        """Keep the measurement of a run; there is one."""
        self._document(run_id, "measurement", "", measurement.model_dump(mode="json", by_alias=True))

    def record_verdict(self, run_id: str, verdict: Verdict) -> None:
        """Keep a verdict; verifying again adds another."""
        name = f"{sum(1 for _ in self._documents(run_id, 'verdict')):04d}"
        self._document(run_id, "verdict", name, verdict.model_dump(mode="json", by_alias=True))

    def record_result(self, run_id: str, name: str, document: dict[str, Any]) -> None:
        """Keep an evaluation table or another result under a name."""
        self._document(run_id, "result", name, document)

    def record_calibration(self, calibration: DeviceCalibration) -> None:
        """Keep what a device was measured to do; the latest counts."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        document = calibration.model_dump(mode="json", by_alias=True)
        self._write(CALIBRATIONS, [{"gpu": calibration.gpu, "at": at, "document": document}], "calibration")

    def record_observation(self, settings: dict[str, Any], forecast: Forecast, observation: StepObservation) -> None:
        """Keep a step that a user measured elsewhere, beside its forecast; `settings` are its settings or command."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        row: dict[str, Any] = {"gpu": forecast.gpu, "at": at, "settings": settings}
        row["forecast"] = forecast.model_dump(mode="json", by_alias=True, include=set(Forecast.model_fields))
        row["observation"] = observation.model_dump()
        self._write(OBSERVATIONS, [row], "observation")

    def record_step(self, run_id: str, report: StepReport, *, is_saved: bool = False) -> None:
        """Keep one step. Steps replayed after a resume belong to a new attempt, begun by this object's first call.

        Where they cannot be written they wait, with a warning, and are tried again with the next ones. With `is_saved`
        nothing waits: a checkpoint of this step follows, and no later process will run the steps before it again.
        """
        if run_id not in self._attempts:
            with self._engine.connect() as connection:
                last = connection.scalar(sa.select(sa.func.max(STEPS.c.attempt)).where(STEPS.c.run_id == run_id))
            self._attempts[run_id] = 0 if last is None else last + 1
        row = {"run_id": run_id, "attempt": self._attempts[run_id], "step": report.step}
        self._waiting.append({**row, "report": report.model_dump(mode="json")})
        if is_saved or len(self._waiting) % STEPS_AT_ONCE == 0:
            try:
                self.flush()
            except LedgerNotWritten as failure:
                waiting = len(self._waiting)
                warnings.warn(f"{failure} {waiting} steps wait; training goes on.", LedgerWarning, stacklevel=2)

    def flush(self) -> None:
        """Write the steps that wait.

        Raises:
            LedgerNotWritten: it cannot be done now; they keep waiting.
        """
        if self._waiting:
            self._write(STEPS, self._waiting, "steps")
            self._waiting = []

    def runs(self, limit: int = 20) -> list[RunRow]:
        """The latest runs, newest first, in the order that they were entered: clocks are put back."""
        return [self._row(row) for row in self._read(_newest_first().limit(limit))]

    def run(self, run_id: str) -> RunRow:
        """The run of an id, a unique beginning of one, `last`, or the path of its folder.

        Raises:
            RunNotFound: none, or several, begin so.
        """
        if _is_path(run_id):
            return self._run_in(Path(run_id).resolve())
        if run_id == "last":
            latest = self.runs(limit=1)
            if not latest:
                raise RunNotFound("The ledger has no runs yet. Start one with `forerun run code-detector`.")
            return latest[0]
        rows = self._read(sa.select(RUNS).where(RUNS.c.id.startswith(run_id, autoescape=True)))
        if len(rows) != 1:
            ids = [row.id for row in self.runs(limit=200)]
            what = "no run" if not rows else f"{len(rows)} runs"
            raise RunNotFound(f"The ledger has {what} {run_id!r}. Nearest: {nearest(run_id, ids) or 'it is empty'}.")
        return self._row(rows[0])

    def _run_in(self, folder: Path) -> RunRow:
        rows = self._read(sa.select(RUNS).where(RUNS.c.id == folder.name))
        if not rows or Path(rows[0].folder, folder.name).resolve() != folder:
            raise RunNotFound(
                f"The ledger has no run in the folder {folder}. Give a run's id, or bring back what the folders of "
                f"runs have: forerun runs rebuild {folder.parent}"
            )
        return self._row(rows[0])

    def forecast(self, run_id: str) -> Forecast | None:
        """The forecast of a run."""
        return next((Forecast.model_validate(d) for _, d in self._documents(run_id, "forecast")), None)

    def measurement(self, run_id: str) -> Measurement | None:
        """The measurement of a run, once it has finished."""
        return next((Measurement.model_validate(d) for _, d in self._documents(run_id, "measurement")), None)

    def verdict(self, run_id: str) -> Verdict | None:
        """The latest verdict of a run."""
        return next((Verdict.model_validate(d) for _, d in reversed(self._documents(run_id, "verdict"))), None)

    def calibration(self, gpu: str) -> DeviceCalibration | None:
        """The latest calibration of a device, by its catalogue name or `cpu`."""
        query = sa.select(CALIBRATIONS.c.document).where(CALIBRATIONS.c.gpu == gpu)
        rows = self._read(query.order_by(CALIBRATIONS.c.number.desc()).limit(1))
        return DeviceCalibration.model_validate(rows[0].document) if rows else None

    def outcomes(self, gpu: str, limit: int = 50) -> list[OutcomeRow]:
        """Forecast and measurement of the latest finished runs and observations on a device, each newest first."""
        pairs = []
        for row in self._read(_newest_first().where(RUNS.c.gpu == gpu).limit(limit)):
            forecast, measurement = self.forecast(row.id), self.measurement(row.id)
            if forecast is not None and measurement is not None:
                pairs.append(OutcomeRow(row.id, row.settings, forecast, measurement))
        latest = sa.select(OBSERVATIONS).where(OBSERVATIONS.c.gpu == gpu).order_by(OBSERVATIONS.c.number.desc())
        for row in self._read(latest.limit(limit)):
            observation = StepObservation.model_validate(row.observation)
            pairs.append(OutcomeRow("", row.settings, Forecast.model_validate(row.forecast), observation))
        return pairs

    def results(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Results by name."""
        return dict(self._documents(run_id, "result"))

    def steps(self, run_id: str) -> list[StepReport]:
        """Steps in order; of a step that ran in several attempts, the latest."""
        self.flush()
        query = sa.select(STEPS.c.step, STEPS.c.report).where(STEPS.c.run_id == run_id).order_by(STEPS.c.attempt)
        latest = {row.step: row.report for row in self._read(query)}
        return [StepReport.model_validate(latest[step]) for step in sorted(latest)]

    def rebuild(self, root: Path) -> RebuiltRuns:
        """Bring back what the folders of runs below `root` have and this ledger has not.

        Raises:
            LedgerNotWritten: it cannot be written.
        """
        try:
            return rebuild(self._engine, root)
        except OperationalError as error:
            raise self._not_written(error) from error

    def _row(self, row: Any) -> RunRow:
        latest = sa.select(EVENTS.c.kind).where(EVENTS.c.run_id == row.id).order_by(EVENTS.c.number.desc()).limit(1)
        state = next((event_row.kind for event_row in self._read(latest)), "started")
        return RunRow(**row._mapping, state=state)

    def _document(self, run_id: str, kind: str, name: str, document: dict[str, Any]) -> None:
        row = {"run_id": run_id, "kind": kind, "name": name, "document": document}
        self._write(DOCUMENTS, [row], f"{kind} {name}".strip())

    def _documents(self, run_id: str, kind: str) -> list[tuple[str, dict[str, Any]]]:
        query = sa.select(DOCUMENTS.c.name, DOCUMENTS.c.document).where(
            DOCUMENTS.c.run_id == run_id, DOCUMENTS.c.kind == kind
        )
        return [(row.name, row.document) for row in self._read(query.order_by(DOCUMENTS.c.name))]

    def _write(self, table: sa.Table, rows: Iterable[dict[str, Any]], what: str) -> None:
        rows = list(rows)
        try:
            with self._engine.begin() as connection:
                if table is EVENTS:  # their numbers are the order of the ledger, which a journal keeps
                    answers = [connection.execute(table.insert().values(**row)) for row in rows]
                    numbers = [answer.inserted_primary_key for answer in answers]
                    rows = [{**row, "number": key[0] if key else None} for row, key in zip(rows, numbers, strict=True)]
                else:
                    connection.execute(table.insert(), rows)
        except IntegrityError as error:
            raise LedgerConflict(
                f"The ledger already has {what}, and rows are never rewritten. Start a new run instead."
            ) from error
        except OperationalError as error:
            raise self._not_written(error) from error
        self._journals.add(table, rows)

    def _not_written(self, error: OperationalError) -> LedgerNotWritten:
        return LedgerNotWritten(
            f"The ledger {self._engine.url.render_as_string()} cannot be written: {error.orig}. Free space or "
            f"change permissions there, or set FORERUN_LEDGER to another place."
        )

    def _read(self, query: Any) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(query))


def _is_path(text: str) -> bool:
    """Whether somebody names a folder; no id of a run holds these."""
    return "/" in text or text in (".", "..")


def _newest_first() -> Any:
    """Runs in the order that they were entered, which the numbers of their events keep."""
    begun = sa.select(EVENTS.c.run_id, sa.func.min(EVENTS.c.number).label("place")).group_by(EVENTS.c.run_id)
    places = begun.subquery()
    query = sa.select(RUNS).outerjoin(places, RUNS.c.id == places.c.run_id)
    return query.order_by(places.c.place.desc().nulls_last(), RUNS.c.started_at.desc(), RUNS.c.id.desc())
