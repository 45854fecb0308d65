"""Who writes a run's checkpoints: this thread, or one beside it from a copy while training goes on.

A background write is the same durable write (`checkpoint.py`); the step waits only for the copy into host memory, and
for the write before, should it not be done yet. What went wrong with it is told at the next save, or when it is waited
for. Of several ranks all must call every method; the first one writes, or each its part, which they wait for.
"""

import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import CheckpointNotWritten, UserNote
from forerun.step.training_step import TrainingStep
from forerun.train.checkpoint import (
    Contents,
    Progress,
    contents_of,
    place_of,
    write_checkpoint,
    write_parts,
    writes_parts,
)
from forerun.train.checkpoint_files import newest_of, prune_checkpoints
from forerun.train.ranks import from_first, rank


@dataclass(frozen=True)
class FailedSave:
    """A checkpoint that could not be written; what was there before is untouched."""

    step: int
    reason: str


class CheckpointWarning(UserNote):
    """A checkpoint could not be written; the run goes on."""


def report_failed_save(folder: Path, failure: FailedSave | None, *, is_last: bool) -> None:
    """Warn of a checkpoint that could not be written, where there was one.

    Raises:
        CheckpointNotWritten: it is the last one.
    """
    if failure is None:
        return
    message = (
        f"The checkpoint of step {failure.step} could not be written: {failure.reason}. Last good checkpoint: "
        f"{newest_of(folder)}. Free space or change permissions in {folder}."
    )
    if is_last:
        raise CheckpointNotWritten(message)
    warnings.warn(f"{message} Training goes on.", CheckpointWarning, stacklevel=4)


class Saver:
    """Saves one run into `folder`, at most one checkpoint at a time."""

    def __init__(self, folder: Path, step: TrainingStep):
        mode, self.keep_last = step.settings.checkpoints.background, step.settings.checkpoints.keep_last
        self.folder, self.step = folder, step
        usual = mode == "always" or (mode == "auto" and step.device_type == "cuda")
        self.is_background = usual and not writes_parts(step)  # ranks must wait for each other
        self.written_checkpoints = 0
        """Durable checkpoints of the whole run, earlier processes' included."""
        self._thread: threading.Thread | None = None
        self._failure: FailedSave | None = None
        self._started: int | None = None

    def save(self, progress: Progress) -> FailedSave | None:
        """Save, or begin to; nothing may be pending."""
        if self._started is not None:
            raise RuntimeError("a checkpoint is pending; settle it first")
        contents = contents_of(self.step, progress, copied=self.is_background)
        self._started = int(progress["step"])
        if not self.is_background:
            self._write(contents)
            return self.settle()
        if rank() == 0:
            self._thread = threading.Thread(target=self._write, args=(contents,), name="checkpoint")
            self._thread.start()
        return None

    def settle(self) -> FailedSave | None:
        """Wait for what is pending; what went wrong with it."""
        if self._started is None:
            return None
        if self._thread is not None:
            self._thread.join()
        failure = from_first(self._failure)
        self.written_checkpoints += failure is None
        self._thread = self._failure = self._started = None
        return failure

    def _write(self, contents: Contents) -> None:
        step = int(contents.manifest["progress"]["step"])
        parts = writes_parts(self.step)
        failure = write_parts(self.folder, contents) if parts else None
        if failure is not None:
            self._failure = FailedSave(step, failure)
        if failure is not None or rank() != 0:
            return
        try:
            checkpoint = place_of(self.folder, contents) if parts else write_checkpoint(self.folder, contents)
            prune_checkpoints(self.folder, self.keep_last, checkpoint)
        except OSError as error:
            self._failure = FailedSave(step, str(error))
