"""Is an exported model the trained one? The files are read back, scored, and refused when the score moved.

What is compared: the mean loss on the first batches of the training data, and every metric of the recipe's evaluation,
of the run's model and of the one read back from the files. How far they may lie apart depends on what was rounded.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import nn

from forerun.errors import ExportMoved, FilesNotWritten, ForerunError, InvalidSettings, NotSupported
from forerun.hardware.catalogue import Device
from forerun.infer.adapter_base import name_base
from forerun.infer.export import Kind, load_exported, write_export
from forerun.records import Record
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Experiment
from forerun.runs.run import start_training
from forerun.settings.devices import ParallelSettings
from forerun.settings.schema import Settings
from forerun.step.build import bind_step
from forerun.step.training_step import TrainingStep
from forerun.train.best import load_judged
from forerun.units import format_bytes

COMPARED_STEPS = 8
"""Steps of the first epoch whose mean loss is compared."""
SAME, MERGED, ROUNDED = 1e-5, 1e-3, 2e-2
"""Relative tolerance of the loss: same numbers read back; an update added to its weight in fp32; weights rounded to 16
bits or dequantised."""
FORM_TOLERANCE = 1e-4
"""Absolute tolerance of any score of another form: ONNX Runtime sums in fp32 in another order."""
Form = Literal["onnx", "gguf"]
CARD = "README.md"
"""Where the Hugging Face hub looks for the card of a model."""
METRIC_TOLERANCE = 0.01
"""Absolute tolerance of any metric of the evaluation, where the loss may move too."""


class ScoreChange(Record):
    """One number before and after."""

    name: str
    original: float
    exported: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether the number stayed within its tolerance; NaN never does."""
        return abs(self.exported - self.original) <= self.tolerance


class ExportReport(Record):
    """Files of an export, and its scores beside those of the run's model."""

    run_id: str
    kind: str
    folder: str
    files: dict[str, int]
    """Bytes of each file, by name."""
    compared: list[ScoreChange]


def in_one_process(settings: Settings) -> Settings:
    """Settings of the same run in one process, which reads checkpoints of any layout."""
    batch = settings.batch.model_copy(update={"gradient_accumulation_steps": settings.micro_batches_per_step})
    return settings.model_copy(update={"parallel": ParallelSettings(), "batch": batch})


def export_run(
    run_id: str, experiment: Experiment, device: Device, run: Path, to: Path, *, merge: bool,
    forms: Sequence[Form] = (), card: Callable[[Kind], str] | None = None,
) -> ExportReport:  # fmt: skip
    """Export the model that a run is judged by, under `run`, into the new folder `to`; in other `forms` beside it, too.
    `card` is its `README.md`.

    Raises:
        InvalidSettings: there is no checkpoint, or `to` is there already.
        NotSupported: a recipe has no such form, or what it has cannot be written so.
        ExportMoved: the exported model scores otherwise; nothing is left in `to`.
        FilesNotWritten: there is no room for it, or no permission.
    """
    if to.exists():
        raise InvalidSettings(f"--to: {to} exists, and exporting would overwrite it. Name another folder.")
    settings = experiment.settings
    kind: Kind = "model" if settings.adapter.kind == "none" else "merged" if merge else "adapter"
    writers = {form: _writer_of(experiment, form, kind) for form in forms}
    training = start_training(experiment, device, run)
    if not load_judged(training.folder, training.step):
        raise InvalidSettings(f"Run {run_id} has no checkpoint in {training.folder}. Finish it with --resume {run_id}.")
    # Written beside `to` and renamed at the end: a folder of that name is always a whole, checked export.
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        write_export(training.step.model, settings, partial, kind)
        if kind == "adapter":
            name_base(partial, settings, experiment.workload, to)
        if experiment.save_assets is not None:
            experiment.save_assets(partial)
        plain, model = load_exported(partial, experiment.workload)
        again = bind_step(plain, experiment.workload, model.to(training.step.device_type), training.step.device_type)
        changes = compare(experiment, training.step, again, loss_tolerance(experiment, kind))
        for form, write in writers.items():
            gap = write(again, partial)
            name = f"{form.upper()}, largest gap"
            changes.append(ScoreChange(name=name, original=0.0, exported=gap, tolerance=FORM_TOLERANCE))
        moved = [change for change in changes if not change.is_within]
        if moved:
            text = ", ".join(f"{m.name} {m.original:.6g} -> {m.exported:.6g} (within {m.tolerance:.2g})" for m in moved)
            raise ExportMoved(
                f"export: the exported model does not score as the run's model: {text}. Nothing was written to {to}. "
                f"Export the adapter without --merge, or train in a wider precision."
            )
        if experiment.write_card is not None:
            experiment.write_card(experiment.judge(again), partial)
        if card is not None:
            (partial / CARD).write_text(card(kind), encoding="utf-8")
        partial.rename(to)
    except (OSError, SafetensorError) as error:
        if isinstance(error, ForerunError):
            raise
        raise FilesNotWritten(
            f"--to: the export could not be written to {to}: {error}. Nothing was left there. Free space or change "
            f"permissions, or name another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = {str(path.relative_to(to)): path.stat().st_size for path in sorted(to.rglob("*")) if path.is_file()}
    return ExportReport(run_id=run_id, kind=kind, folder=str(to), files=files, compared=changes)


def _writer_of(experiment: Experiment, form: Form, kind: Kind) -> Callable[[TrainingStep, Path], float]:
    """What writes a form.

    Raises:
        NotSupported: the recipe has none, or the model is an adapter, which is said before anything is read.
    """
    if form == "gguf" and kind == "adapter":
        raise NotSupported("--gguf: one plain model; found an adapter of another. Add --merge.")
    write = experiment.write_onnx if form == "onnx" else experiment.write_gguf
    if write is None:
        title = form.upper()
        raise NotSupported(
            f"--{form}: models of {experiment.settings.workload} are not exported to {title}. Leave it out."
        )
    return write


def export_tables(report: ExportReport) -> list[ResultTable]:
    """The files, and the scores before and after."""
    files: list[list[Cell]] = [[name, format_bytes(size)] for name, size in report.files.items()]
    scores: list[list[Cell]] = [
        [m.name.replace("_", " "), f"{m.original:.6g}", f"{m.exported:.6g}", f"{m.tolerance:.2g}"]
        for m in report.compared
    ]
    return [
        ResultTable(title=f"Exported: {report.kind}", note=f"In {report.folder}", columns=["file", "size"], rows=files),
        ResultTable(title="Read back and scored", columns=["score", "run", "exported", "may differ by"], rows=scores),
    ]


def loss_tolerance(experiment: Experiment, kind: Kind) -> float:
    """Relative tolerance of the loss for this kind of export."""
    settings = experiment.settings
    if kind != "merged":
        return SAME
    return ROUNDED if settings.quantization != "none" or settings.precision not in ("fp32", "tf32") else MERGED


def compare(
    experiment: Experiment, original: TrainingStep, exported: TrainingStep, tolerance: float
) -> list[ScoreChange]:
    """Loss and metrics of both models; neither is trained."""
    pairs = [(mean_loss(step, experiment), _metrics(step, experiment)) for step in (original, exported)]
    (loss, metrics), (other_loss, other_metrics) = pairs
    changes = [ScoreChange(name="loss", original=loss, exported=other_loss, tolerance=tolerance * abs(loss))]
    for name, value in metrics.items():
        room = max(METRIC_TOLERANCE if tolerance > SAME else SAME, tolerance * abs(value))
        changes.append(ScoreChange(name=name, original=value, exported=other_metrics[name], tolerance=room))
    return changes


def mean_loss(step: TrainingStep, experiment: Experiment) -> float:
    """Mean loss of the first batches of the data, without dropout."""
    total = count = 0.0
    with _in_evaluation_mode(step.model), torch.no_grad(), step.policy.autocast(step.device_type):
        for micro_batches in experiment.data.epoch_steps(0)[:COMPARED_STEPS]:
            for indices in micro_batches:
                batch = {key: value.to(step.device_type) for key, value in experiment.data.collate(indices).items()}
                total += float(step.workload.loss(step.model, batch).sum)
                count += step.workload.count(batch)
    return total / count


def _metrics(step: TrainingStep, experiment: Experiment) -> dict[str, float]:
    with _in_evaluation_mode(step.model), torch.no_grad():
        return experiment.evaluate(step, 0)


@contextlib.contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Keeps the model in evaluation mode, without dropout, while the block runs."""
    was_training = model.training
    model.eval()
    yield
    model.train(was_training)
