"""Where do the numbers of each step go beside the ledger? Into a JSON-lines file always, and to trackers by name.

`tensorboard` writes into the run's folder and is used wherever it is installed; `wandb`, `mlflow` and `trackio` are
used when named. Each gets the same figures under the same names, and beside them at each step what the forecast said of
it (`forecast_…`), so that both are curves of one chart; at the end the run's peak memory and scores. The file has steps
as they were measured alone.
"""

import contextlib
import importlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from forerun.errors import InvalidSettings, MissingExtra
from forerun.records import Forecast, Measurement, StepReport

STEPS_FILE = "steps.jsonl"
PROJECT = "forerun"
Log = Callable[[dict[str, float], int], None]


class TrackerWarning(UserWarning):
    """Figures of steps are no longer written somewhere; the run goes on."""


def figures(report: StepReport, forecast: Forecast | None = None) -> dict[str, float]:
    """Figures of a step that are worth a curve, by name; the workload's details are among them.

    `mfu` takes the arithmetic of a step and the peak of the device from the forecast.
    """
    optional = {
        "gradient_norm": report.gradient_norm,
        "mfu": None if forecast is None else measured_mfu(report, forecast),
        "peak_allocated_bytes": report.peak_allocated_bytes,
        "gpu_busy_share": report.gpu_busy_share,
        "gpu_clock_share": report.gpu_clock_share,
    }
    values = {
        "loss": report.loss,
        "learning_rate": report.learning_rate,
        "epoch": report.epoch,
        "step_seconds": report.step_seconds,
        "tokens_per_second": report.tokens / report.step_seconds,
        "padding_share": 1 - report.tokens / report.padded_tokens if report.padded_tokens else 0.0,
        "data_wait_share": report.phases.data_seconds / report.step_seconds,
        **report.details,
    }
    return values | {name: value for name, value in optional.items() if value is not None}


def promised(forecast: Forecast | None) -> dict[str, float]:
    """What a forecast says of each step, under the names of `figures`."""
    if forecast is None:
        return {}
    return {
        "forecast_step_seconds": forecast.step.seconds.expected,
        "forecast_peak_allocated_bytes": float(forecast.memory.peak_allocated_bytes),
    }


def measured_mfu(report: StepReport, forecast: Forecast) -> float | None:
    """Model FLOP utilisation of one step: its share of the forecast step's arithmetic, by padded tokens."""
    step, padded = forecast.step, forecast.detail.padded_tokens_per_step
    if not padded or not step.mfu:
        return None
    peak = step.model_flops / (step.mfu * step.seconds.expected)
    return step.model_flops * report.padded_tokens / padded / report.step_seconds / peak


def require_trackers(names: Sequence[str]) -> None:
    """Refuse names of trackers that cannot be used, before anything is done.

    Raises:
        InvalidSettings: no tracker of such a name.
        MissingExtra: one is not installed.
    """
    for name in names:
        _library(name)


class Tracks:
    """Where each step of a run is written to, and at its end what was measured of the whole."""

    def __init__(self, folder: Path, logs: dict[str, Log], forecast: Forecast | None) -> None:
        self._folder, self._logs, self._forecast, self._last = folder, logs, forecast, 0

    def __call__(self, report: StepReport) -> None:
        """Write a step's figures."""
        self._last = report.step
        values = figures(report, self._forecast)
        for name in list(self._logs):
            self._write(name, values if name == STEPS_FILE else values | promised(self._forecast))

    def end(self, measurement: Measurement) -> None:
        """Write the run's peak memory and scores beside the last step; the file of steps has steps alone."""
        peak = measurement.memory.peak_allocated_bytes
        memory = {} if peak is None else {"peak_allocated_bytes": float(peak)}
        for name in [name for name in self._logs if name != STEPS_FILE]:
            self._write(name, memory | measurement.metrics)

    def _write(self, name: str, values: dict[str, float]) -> None:
        try:
            self._logs[name](values, self._last)
        except OSError as error:  # a full disk must not end a run of hours
            del self._logs[name]
            message = f"{name} in {self._folder} cannot be written: {error}. It ends at step {self._last - 1}"
            warnings.warn(f"{message}; training goes on.", TrackerWarning, stacklevel=3)


@contextlib.contextmanager
def tracking(
    folder: Path, run_id: str, names: Sequence[str] = (), forecast: Forecast | None = None
) -> Iterator[Tracks]:
    """Yields what takes each step's report while a run lasts, and the measurement at its end.

    Raises:
        InvalidSettings: no tracker of such a name.
        MissingExtra: a tracker that was named is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        logs = {name: stack.enter_context(_open_tracker(name, folder, run_id)) for name in names}
        if "tensorboard" not in names:
            with contextlib.suppress(MissingExtra):
                logs["tensorboard"] = stack.enter_context(_open_tracker("tensorboard", folder, run_id))
        logs[STEPS_FILE] = _lines(folder / STEPS_FILE)
        yield Tracks(folder, logs, forecast)


def _lines(file: Path) -> Log:
    """Appends a line of JSON for each step; NaN and infinity become null, as JSON has no word for them."""

    def log(values: dict[str, float], step: int) -> None:
        plain = {name: value if math.isfinite(value) else None for name, value in values.items()}
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, **plain}) + "\n")

    return log


def _library(name: str) -> Any:
    if name not in TRACKERS:
        raise InvalidSettings(f"--log: one of {', '.join(TRACKERS)}; found {name!r}.")
    try:
        return importlib.import_module(TRACKERS[name][0])
    except ImportError as error:
        raise MissingExtra(f"--log: {name} is not installed. Install it with pip install {name}.") from error


@contextlib.contextmanager
def _open_tracker(name: str, folder: Path, run_id: str) -> Iterator[Log]:
    library, (_, open_library) = _library(name), TRACKERS[name]
    with open_library(library, folder, run_id) as log:
        yield log


@contextlib.contextmanager
def _tensorboard(library: Any, folder: Path, run_id: str) -> Iterator[Log]:
    writer = library.SummaryWriter(str(folder / "tensorboard"))

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    try:
        yield log
    finally:
        with contextlib.suppress(OSError):  # close() flushes; the failed write was reported at its step
            writer.close()


@contextlib.contextmanager
def _wandb(library: Any, folder: Path, run_id: str) -> Iterator[Log]:
    run = library.init(project=PROJECT, name=run_id, dir=str(folder))
    try:
        yield lambda values, step: run.log(values, step=step)
    finally:
        run.finish()


@contextlib.contextmanager
def _mlflow(library: Any, folder: Path, run_id: str) -> Iterator[Log]:
    with library.start_run(run_name=run_id):
        yield lambda values, step: library.log_metrics(values, step=step)


@contextlib.contextmanager
def _trackio(library: Any, folder: Path, run_id: str) -> Iterator[Log]:
    library.init(project=PROJECT, name=run_id)
    try:
        yield lambda values, step: library.log(values, step=step)
    finally:
        library.finish()


TRACKERS: dict[str, tuple[str, Any]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
    "trackio": ("trackio", _trackio),
}
"""Module to import and context manager that opens it, by the tracker's name."""
