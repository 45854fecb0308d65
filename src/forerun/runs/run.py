"""What happens in a run? Forecast → train → judge → measure → verify, each stage entered in the ledger.

`run_experiment` is what `forerun run` calls, by way of `local.py`. It can be stopped with Ctrl-C, killed and started
again: with the id of the run it goes on from the newest good checkpoint, under the same forecast.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.current_work import work
from forerun.errors import ForerunError, InvalidSettings, LedgerNotWritten
from forerun.forecasting import apart
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest
from forerun.hardware.catalogue import Device
from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast, Measurement, Range, StepReport, Verdict
from forerun.runs.eta import TimeLeft
from forerun.runs.folder_lock import only_process
from forerun.runs.recipe import Experiment, Judgement
from forerun.runs.trackers import tracking
from forerun.settings.schema import Settings
from forerun.step.build import build_step
from forerun.train.interrupt import Interrupted
from forerun.train.launch import note_run
from forerun.train.loop import Training, seed_everything
from forerun.train.measure import versions
from forerun.train.ranks import from_first, join_group
from forerun.verify.compare import verify
from forerun.verify.recalibrate import with_experience

RUNS_FOLDER = Path("runs")
"""Checkpoints and pages of runs, in the current folder."""

RESULT_TABLES = "tables"
"""Name in the ledger of the tables and curves of a run's final evaluation."""

COMPARISON_DATA = "kept"
"""Name in the ledger of a run's data for comparisons with others."""


class RunListener:
    """Callbacks for each stage of a run; they do nothing here, and `progress.TerminalProgress` shows them."""

    def forecast_made(self, forecast: Forecast) -> None:
        """The forecast is made; nothing has been trained."""

    def training_begins(self, run_id: str, training: Training) -> None:
        """The model is built; `training` knows how many steps are left."""

    def step_done(self, report: StepReport, left: Range) -> None:
        """One optimizer step is done, with so many seconds of training left."""

    def training_done(self) -> None:
        """No step is left, or training stopped early; held-out data come next."""

    def judged(self, judgement: Judgement) -> None:
        """The final evaluation is done."""

    def verified(self, verdict: Verdict) -> None:
        """The forecast has been compared with the run, and the criteria with its scores."""


@dataclass(frozen=True)
class RunResult:
    """Forecast, measurement, scores and verdict of a finished run."""

    run_id: str
    forecast: Forecast
    measurement: Measurement
    judgement: Judgement
    verdict: Verdict


def run_experiment(
    experiment: Experiment,
    device: Device,
    ledger: Ledger,
    root: Path,
    *,
    resume: str | None = None,
    listener: RunListener | None = None,
    trackers: Sequence[str] = (),
) -> RunResult:
    """Forecast, train, judge and verify on the device here; checkpoints go to `root`/RUN/checkpoints.

    `trackers` are names of `runs.trackers` that get each step's figures too.

    Raises:
        NothingFits: the forecast says it does not fit.
        RunBusy: another process trains the run to resume.
        Interrupted: stopped on request; the run can be resumed.
    """
    listener = listener or RunListener()
    begun = None if resume is not None else begin_run(experiment, device, ledger, root, listener)
    row = ledger.run(begun[0] if begun else resume or "")
    with only_process(run_folder(row)):
        run_id, forecast = begun or continue_run(experiment, ledger, row.id)
        if begun is None:
            listener.forecast_made(forecast)
        with tracking(run_folder(row), run_id, trackers, forecast) as track:
            measurement, judgement = train_and_judge(experiment, device, ledger, run_id, listener, forecast, track)
            track.end(measurement)
    verdict = verify(run_id, forecast, measurement, experiment.criteria)
    ledger.record_verdict(run_id, verdict)
    ledger.record_event(run_id, "verified")
    listener.verified(verdict)
    return RunResult(run_id, forecast, measurement, judgement, verdict)


def begin_run(
    experiment: Experiment, device: Device, ledger: Ledger, root: Path, listener: RunListener
) -> tuple[str, Forecast]:
    """Forecast a new run, and enter it in the ledger when it fits; returns its id and forecast.

    Raises:
        NothingFits: the forecast says it does not fit; the ledger has no such run.
    """
    known_times = experiment.known_times(device)
    request = ForecastRequest(experiment.settings, experiment.workload, experiment.plan, device, times=known_times)
    forecast = make_forecast(with_experience(request, ledger))
    listener.forecast_made(forecast)  # shown even when it does not fit
    forecast.require_fit()
    run_id = enter_run(experiment.settings, device, ledger, root)
    note_run(run_id)
    ledger.record_forecast(run_id, forecast)
    return run_id, forecast


def enter_run(settings: Settings, device: Device, ledger: Ledger, root: Path) -> str:
    """Enter a new run of an experiment's settings in the ledger; returns its id."""
    return ledger.start_run(
        name=settings.name,
        workload=settings.workload,
        settings=settings.model_dump(mode="json"),
        settings_hash=settings.hash,
        gpu=device.name,
        folder=str(root.resolve()),
        versions=versions(),
    )


def continue_run(experiment: Experiment, ledger: Ledger, resume: str) -> tuple[str, Forecast]:
    """The id and forecast of a run that was begun with the same settings.

    Raises:
        RunNotFound: no such run.
        InvalidSettings: it has other settings, or has finished.
    """
    row = ledger.run(resume)
    forecast = ledger.forecast(row.id)
    if row.settings_hash != experiment.settings.hash:
        raise InvalidSettings(
            f"--resume: run {row.id} has settings {row.settings_hash}, the target has {experiment.settings.hash}. "
            f"Resume it with the target and --set options that it was started with."
        )
    if ledger.measurement(row.id) is not None or forecast is None:
        raise InvalidSettings(f"--resume: run {row.id} is {row.state}; there is nothing to resume. Start a new run.")
    ledger.record_event(row.id, "resumed")
    return row.id, forecast


def train_and_judge(
    experiment: Experiment,
    device: Device,
    ledger: Ledger,
    run_id: str,
    listener: RunListener,
    forecast: Forecast,
    track: Callable[[StepReport], None] = lambda report: None,
) -> tuple[Measurement, Judgement]:
    """Train to the end, score, and enter steps, measurement and tables in the ledger."""
    apart.end()
    join_group(experiment.settings, device.kind)  # the forecast has made groups of its own until now
    training = start_training(experiment, device, from_first(run_folder(ledger.run(run_id))))
    listener.training_begins(run_id, training)
    remaining = TimeLeft(forecast, training.schedule.total_steps)
    try:
        for report in training.steps():
            ledger.record_step(run_id, report, is_saved=training.saves_after(report))
            track(report)
            listener.step_done(report, remaining.after(report))
    except Interrupted:
        ledger.record_event(run_id, "interrupted")
        raise
    except ForerunError as error:
        with contextlib.suppress(LedgerNotWritten):  # a full disk may be why the run failed
            ledger.record_event(run_id, "failed", str(error))
        raise
    listener.training_done()
    training.load_best()
    with work("scoring held-out data"):
        scores, seconds = _timed(lambda: experiment.judge(training.step))
    # Measured before the baselines: models that they train would raise the peaks of memory.
    measurement = training.measurement(device.name, ledger.steps(run_id), {}, seconds)
    with work("making the baselines"):
        judgement = experiment.baselines(scores)
    evidence = measurement.evidence.model_copy(update={"half_way_error": remaining.half_way_error})
    metrics = last_epoch_means(ledger.steps(run_id)) | judgement.metrics
    measurement = measurement.model_copy(update={"metrics": metrics, "evidence": evidence})
    ledger.record_measurement(run_id, measurement)
    content = {"tables": judgement.tables, "curves": judgement.curves}
    ledger.record_result(
        run_id, RESULT_TABLES, {name: [each.model_dump() for each in all_] for name, all_ in content.items()}
    )
    ledger.record_result(run_id, COMPARISON_DATA, judgement.comparison_data)
    ledger.record_event(run_id, "finished")
    listener.judged(judgement)
    return measurement, judgement


def follow(experiment: Experiment, device: Device) -> None:
    """What every rank but the first does: its share of training and scoring; nothing is entered or shown."""
    training = start_training(experiment, device, from_first(Path()))
    for _ in training.steps():
        pass
    training.load_best()
    experiment.judge(training.step)


def last_epoch_means(reports: Sequence[StepReport]) -> dict[str, float]:
    """Means of the loss and its details over the last epoch, in whichever process its steps were done."""
    last = [r for r in reports if r.epoch > reports[-1].epoch - 1] if reports else []
    means = {name: sum(r.details[name] for r in last) / len(last) for name in (last[0].details if last else ())}
    return means | ({"training_loss": sum(r.loss for r in last) / len(last)} if last else {})


def start_training(experiment: Experiment, device: Device, folder: Path) -> Training:
    """Model, optimizer and data on the device here, ready to run or resume in `folder`."""
    start = time.perf_counter()
    seed_everything(experiment.settings.seed)
    step = build_step(experiment.settings, experiment.workload, device.kind, pretrained=True)
    if experiment.before is not None:
        experiment.before(step, folder)
    seconds = experiment.load_seconds + experiment.once_seconds + time.perf_counter() - start
    return Training(
        step,
        experiment.data,
        folder / "checkpoints",
        startup_seconds=seconds,
        evaluate=experiment.evaluate,
        trivial=experiment.trivial,
        watch=experiment.watch,
        best_by=experiment.best_by,
    )


def run_folder(row: RunRow) -> Path:
    """Folder of a run's checkpoints, figures of steps and page."""
    return Path(row.folder) / row.id


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start
