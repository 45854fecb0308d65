"""Which checkpoint of a run is the best, and when does training stop early? By one score of the evaluations.

The model of the best evaluation so far lies in `best/step-00000123` beside `checkpoints/`; the numbers that decide are
part of every checkpoint's progress. A resumed run repeats the evaluations since its checkpoint with the same scores,
and so ends with the same best model as a run that was never stopped. A folder that no progress names is removed only
once the checkpoint after it is durable.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.errors import CheckpointDamaged, InvalidSettings
from forerun.step.parallel import whole
from forerun.step.training_step import TrainingStep
from forerun.train.checkpoint import (
    MODEL,
    Contents,
    Progress,
    load_newest,
    local_parts,
    model_tensors,
    own_manifest,
    places_of,
    restore_model,
    source_of,
    write_checkpoint,
    write_parts,
)
from forerun.train.checkpoint_files import FORMAT, checkpoints, remove_folder
from forerun.train.ranks import from_first, rank

BEST = "best"
"""Folder beside `checkpoints`."""


@dataclass(frozen=True)
class BestBy:
    """The score of an evaluation that decides."""

    score: str
    is_higher_better: bool


@dataclass
class BestCheckpoint:
    """The best evaluation of one run, and how long ago it was."""

    by: BestBy
    folder: Path
    """`best` of the run."""
    patience: int | None = None
    """Evaluations without a better score after which training stops."""
    step: int = 0
    """Optimizer steps of the best model; 0 before there is one."""
    value: float = math.nan
    waited: int = 0
    """Evaluations since the best one."""
    values: list[float] = field(default_factory=list)
    """Scores of all evaluations, in order."""
    saved_step: int = 0
    """Step of the best model that the latest checkpoint names."""

    @property
    def is_over(self) -> bool:
        """Whether training stops early."""
        return self.patience is not None and self.waited >= self.patience

    def stop_said(self, done_steps: int, total_steps: int) -> str:
        """Where training stopped early and why; empty where it did not."""
        if not self.is_over or done_steps >= total_steps:
            return ""
        wait = "1 evaluation" if self.patience == 1 else f"{self.patience} evaluations"
        return (
            f"stopped early after step {done_steps:,} of {total_steps:,}: {self.by.score} was not better for {wait} "
            f"(evaluation.patience); its best, {self.value:.4f}, is of step {self.step:,}"
        )

    def observe(self, scores: Mapping[str, float], number: int, step: TrainingStep) -> str | None:
        """Note the scores after `number` optimizer steps, and save the model of `step` where it is the best so far.

        A collective: all ranks must call it. Returns why the model could not be written, or None; a model that could
        not is not the best one.

        Raises:
            InvalidSettings: the score is not among them.
        """
        if self.by.score not in scores:
            raise InvalidSettings(
                f"evaluation.metric: a score of this run's evaluations; found {self.by.score!r}. "
                f"Scores: {', '.join(sorted(scores))}."
            )
        value = from_first(scores[self.by.score])  # ranks may differ in the last bit, and must agree
        self.values.append(value)
        if not self._is_better(value):
            self.waited += 1
            return None
        own = model_tensors(step)
        if step.pipeline is not None:  # no rank has all of it
            file, parts = local_parts(step, MODEL, own)
            contents = {file: {name: tensor.detach().to("cpu") for name, tensor in parts.items()}}
        else:
            contents = {MODEL: {name: whole(tensor).detach().to("cpu") for name, tensor in own.items()}}
        manifest = {
            "parts": None if step.pipeline is None else places_of(step, {MODEL: own}),
            "format": FORMAT, "settings_hash": step.settings.resumable_hash,
            "progress": {"step": number, self.by.score: value},
        }  # fmt: skip
        failure = self._write(Contents(contents, manifest), step)
        if failure is None:
            self.step, self.value, self.waited = number, value, 0
        return failure

    def _write(self, contents: Contents, step: TrainingStep) -> str | None:
        """Make the model durable; returns why it could not be written, or None."""
        if step.pipeline is not None:
            return write_parts(self.folder, contents)
        failure = None
        try:
            if rank() == 0:
                write_checkpoint(self.folder, contents)
        except OSError as error:
            failure = str(error)
        return from_first(failure)

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if math.isnan(self.value):
            return True
        return value > self.value if self.by.is_higher_better else value < self.value

    def progress(self) -> Progress:
        """What a checkpoint keeps of it."""
        self.saved_step = self.step
        value = None if math.isnan(self.value) else self.value
        return {"step": self.step, "value": value, "waited": self.waited, "values": self.values}

    def restore(self, progress: Progress | None) -> None:
        """Go on from what a checkpoint kept."""
        if progress is not None:
            self.step, self.waited, self.values = progress["step"], progress["waited"], list(progress["values"])
            self.saved_step = self.step
            self.value = math.nan if progress["value"] is None else progress["value"]

    def checkpoint_written(self, *, is_durable: bool) -> None:
        """The checkpoint that `progress` was asked for last is on the disk, or could not be written."""
        if is_durable and rank() == 0:
            for path in checkpoints(self.folder):
                if path not in (self.place, self._place(self.saved_step)):
                    remove_folder(path)

    @property
    def place(self) -> Path:
        """Folder of the best model."""
        return self._place(self.step)

    def _place(self, number: int) -> Path:
        return self.folder / f"step-{number:08d}"

    def load(self, step: TrainingStep) -> None:
        """Put the weights of the best model into `step`; nothing where there was no evaluation.

        Raises:
            CheckpointDamaged: its files do not match their manifest.
        """
        if from_first(self.step):
            load_weights(self.place, step)


def load_weights(path: Path, step: TrainingStep) -> Progress:
    """Put the weights of the checkpoint `path`, and nothing else of it, into `step`; returns its progress.

    Raises:
        CheckpointDamaged: a file is missing, cut or changed.
        InvalidSettings: it was made with other settings.
    """
    manifest = own_manifest(path, step, "Name the run that it belongs to.")
    restore_model(step, source_of(path, MODEL, manifest["parts"]))
    return manifest["progress"]


def load_judged(folder: Path, step: TrainingStep) -> bool:
    """Restore `step` from the newest checkpoint of `folder`, then put the weights of the best one into its model.

    Returns whether there was a checkpoint.

    Raises:
        CheckpointDamaged: the best model is named by the checkpoint, and is lost.
        InvalidSettings: they were made with other settings.
    """
    progress = load_newest(folder, step)
    if progress is not None:
        _load_best(folder, progress, step)
    return progress is not None


def load_judged_weights(folder: Path, step: TrainingStep) -> bool:
    """The same for the weights alone, whoever trained them: neither optimizer nor random generators are read.

    Raises:
        CheckpointDamaged: no checkpoint matches its manifest, or the best model is lost.
        InvalidSettings: they were made with other settings.
    """
    paths = checkpoints(folder)
    for path in reversed(paths):
        try:
            progress = load_weights(path, step)
        except CheckpointDamaged:
            if path == paths[0]:
                raise
            continue
        _load_best(folder, progress, step)
        return True
    return False


def _load_best(folder: Path, progress: Progress, step: TrainingStep) -> None:
    best = progress.get(BEST)
    if best is not None and best["step"]:
        try:
            load_weights(folder.parent / BEST / f"step-{best['step']:08d}", step)
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{error} The best model of the run is lost; train it again.") from error
