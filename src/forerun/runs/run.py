"""The whole story of a recipe run: forecast → train → judge → measure → verify, each stage entered in the ledger.

`run_recipe` is what `forerun run` calls. It can be stopped with Ctrl-C, killed and started again: with the id of the
run it goes on from the newest good checkpoint, under the same forecast.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError, InvalidSettings, LedgerNotWritten
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest
from forerun.hardware.catalogue import Device
from forerun.ledger.store import Ledger, RunRow
from forerun.records import Forecast, Measurement, Range, StepReport, Verdict
from forerun.runs.eta import TimeLeft
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

RESULT_TABLES = "tables"
"""Name in the ledger of the tables and curves of a run's final evaluation."""

COMPARISON_DATA = "kept"
"""Name in the ledger of what a run keeps for comparisons with others."""


class RunListener:
    """Told what happens, stage by stage; does nothing. The command line draws it."""

    def forecast_made(self, forecast: Forecast) -> None:
        """The forecast is made; nothing has been trained."""

    def training_begins(self, run_id: str, training: Training) -> None:
        """The model is built; `training` knows how many steps are left."""

    def step_done(self, report: StepReport, left: Range) -> None:
        """One optimizer step is done, with so many seconds of training left."""

    def judged(self, judgement: Judgement) -> None:
        """The final evaluation is done."""

    def verified(self, verdict: Verdict) -> None:
        """The verdict is there."""


@dataclass(frozen=True)
class RunResult:
    """Everything a finished run left."""

    run_id: str
    forecast: Forecast
    measurement: Measurement
    judgement: Judgement
    verdict: Verdict


def run_experiment(
    opened: Experiment,
    device: Device,
    ledger: Ledger,
    root: Path,
    *,
    resume: str | None = None,
    listener: RunListener | None = None,
    trackers: Sequence[str] = (),
) -> RunResult:
    """Forecast, train, judge and verify on the device here; checkpoints go to `root`/RUN/checkpoints.

    `trackers` are names of `recipes.trackers` that get each step's figures too.

    Raises:
        NothingFits: the forecast says it does not fit.
        Interrupted: stopped on request; the run can be resumed.
    """
    heard = listener or RunListener()
    if resume is None:
        known = opened.known_times(device)
        request = ForecastRequest(opened.settings, opened.workload, opened.plan, device, known=known)
        forecast = make_forecast(with_experience(request, ledger))
        heard.forecast_made(forecast)
        forecast.require_fit()
        run_id = enter_run(opened.settings, device, ledger, root)
        note_run(run_id)
        ledger.record_forecast(run_id, forecast)
    else:
        run_id, forecast = continue_run(opened, ledger, resume)
        heard.forecast_made(forecast)
    with tracking(run_folder(ledger.run(run_id)), run_id, trackers, forecast) as track:
        measurement, judgement = train_and_judge(opened, device, ledger, run_id, heard, forecast, track)
    verdict = verify(run_id, forecast, measurement, opened.criteria)
    ledger.record_verdict(run_id, verdict)
    ledger.record_event(run_id, "verified")
    heard.verified(verdict)
    return RunResult(run_id, forecast, measurement, judgement, verdict)


def enter_run(settings: Settings, device: Device, ledger: Ledger, root: Path) -> str:
    """Enter a new run of an opened recipe's settings in the ledger; returns its id."""
    return ledger.start_run(
        name=settings.name,
        workload=settings.workload,
        settings=settings.model_dump(mode="json"),
        settings_hash=settings.hash,
        gpu=device.name,
        folder=str(root.resolve()),
        versions=versions(),
    )


def continue_run(opened: Experiment, ledger: Ledger, resume: str) -> tuple[str, Forecast]:
    """The id and forecast of a run that was begun with the same settings.

    Raises:
        RunNotFound: no such run.
        InvalidSettings: it has other settings, or has finished.
    """
    row = ledger.run(resume)
    forecast = ledger.forecast(row.id)
    if row.settings_hash != opened.settings.hash:
        raise InvalidSettings(
            f"--resume: run {row.id} has settings {row.settings_hash}, the target has {opened.settings.hash}. "
            f"Resume it with the target and --set options that it was started with."
        )
    if ledger.measurement(row.id) is not None or forecast is None:
        raise InvalidSettings(f"--resume: run {row.id} is {row.state}; there is nothing to resume. Start a new run.")
    ledger.record_event(row.id, "resumed")
    return row.id, forecast


def train_and_judge(
    opened: Experiment,
    device: Device,
    ledger: Ledger,
    run_id: str,
    heard: RunListener,
    forecast: Forecast,
    track: Callable[[StepReport], None] = lambda report: None,
) -> tuple[Measurement, Judgement]:
    """Train to the end, score, and enter steps, measurement and tables in the ledger."""
    join_group(opened.settings, device.kind)  # the forecast has made groups of its own until now
    training = start_training(opened, device, from_first(run_folder(ledger.run(run_id))))
    heard.training_begins(run_id, training)
    remaining = TimeLeft(forecast, training.schedule.total_steps)
    try:
        for report in training.steps():
            ledger.record_step(run_id, report)
            track(report)
            heard.step_done(report, remaining.after(report))
    except Interrupted:
        ledger.record_event(run_id, "interrupted")
        raise
    except ForerunError as error:
        with contextlib.suppress(LedgerNotWritten):  # a full disk may be why the run failed
            ledger.record_event(run_id, "failed", str(error))
        raise
    scores, seconds = _timed(lambda: opened.judge(training.step))
    measured = training.measurement(device.name, ledger.steps(run_id), {}, seconds)  # before baselines raise the peaks
    judgement = opened.baselines(scores)
    evidence = measured.evidence.model_copy(update={"half_way_error": remaining.half_way_error})
    metrics = judgement.metrics | last_epoch_means(ledger.steps(run_id))
    measured = measured.model_copy(update={"metrics": metrics, "evidence": evidence})
    ledger.record_measurement(run_id, measured)
    shown = {"tables": judgement.tables, "curves": judgement.curves}
    ledger.record_result(
        run_id, RESULT_TABLES, {name: [each.model_dump() for each in all_] for name, all_ in shown.items()}
    )
    ledger.record_result(run_id, COMPARISON_DATA, judgement.comparison_data)
    ledger.record_event(run_id, "finished")
    heard.judged(judgement)
    return measured, judgement


def follow(opened: Experiment, device: Device) -> None:
    """What every rank but the first does: its share of training and scoring; nothing is entered or shown."""
    training = start_training(opened, device, from_first(Path()))
    for _ in training.steps():
        pass
    opened.judge(training.step)


def last_epoch_means(reports: Sequence[StepReport]) -> dict[str, float]:
    """Means of the loss and its details over the last epoch, in whichever process its steps were done."""
    last = [r for r in reports if r.epoch > reports[-1].epoch - 1] if reports else []
    means = {name: sum(r.details[name] for r in last) / len(last) for name in (last[0].details if last else ())}
    return means | ({"training_loss": sum(r.loss for r in last) / len(last)} if last else {})


def start_training(opened: Experiment, device: Device, folder: Path) -> Training:
    """Model, optimizer and data on the device here, ready to run or resume in `folder`."""
    start = time.perf_counter()
    seed_everything(opened.settings.seed)
    step = build_step(opened.settings, opened.workload, device.kind, pretrained=True)
    seconds = opened.load_seconds + opened.once_seconds + time.perf_counter() - start
    return Training(
        step,
        opened.data,
        folder / "checkpoints",
        startup_seconds=seconds,
        evaluate=opened.evaluate,
        trivial=opened.trivial,
        watch=opened.watch,
    )


def run_folder(row: RunRow) -> Path:
    """Where a run keeps its files."""
    return Path(row.folder) / row.id


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start
