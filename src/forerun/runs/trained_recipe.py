"""The model of a finished run of a recipe, ready to be asked: `forerun predict` and `forerun generate`."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData, InvalidSettings, NotSupported
from forerun.hardware.catalogue import Device
from forerun.runs.recipe import Answering, Experiment
from forerun.runs.run import start_training
from forerun.settings.schema import Repair
from forerun.step.training_step import TrainingStep
from forerun.train.best import load_judged

ROWS_AT_ONCE = 256
"""Rows that are read and answered before the next ones."""


@dataclass(frozen=True)
class TrainedRecipe:
    """A trained model of a recipe and how it is asked."""

    step: TrainingStep
    answering: Answering

    def answers(self, questions: Sequence[str], new_tokens: int) -> list[dict[str, Any]]:
        """One answer a question, in order."""
        return self.answering.answer(self.step, questions, new_tokens)

    def text(self, prompt: str, new_tokens: int) -> str:
        """What the model writes to a prompt.

        Raises:
            InvalidSettings: it writes no text.
        """
        column = self.answering.text_column
        if column is None:
            raise InvalidSettings(
                f"{self.step.settings.workload} writes no text. Use forerun predict for rows with a column "
                f"{self.answering.column!r}."
            )
        return str(self.answers([prompt], new_tokens)[0][column])

    def answered_rows(
        self, file: str, new_tokens: int, repair: Sequence[Repair] = ()
    ) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Each row of a file and its answer.

        Raises:
            BadData: the file cannot be read, or a row lacks the column that is asked.
        """
        column = self.answering.column
        numbered = enumerate(read_own_rows(file, repair), start=1)
        while chunk := list(itertools.islice(numbered, ROWS_AT_ONCE)):
            for number, row in chunk:
                if not isinstance(row.get(column), str):
                    raise BadData(
                        f"{file}, row {number}: {self.step.settings.workload} is asked by the column {column!r}, a "
                        f"text; found the columns {', '.join(row) or 'none'}. Rename it."
                    )
            answers = self.answers([row[column] for _, row in chunk], new_tokens)
            yield from zip((row for _, row in chunk), answers, strict=True)


def open_trained_recipe(run_id: str, experiment: Experiment, device: Device, run: Path) -> TrainedRecipe:
    """The model that a run is judged by.

    Raises:
        NotSupported: the recipe's models are not asked this way.
        InvalidSettings: the run has no checkpoint.
    """
    if experiment.answering is None:
        raise NotSupported(
            f"predict, generate: models of {experiment.settings.workload} answer otherwise. Use forerun export "
            f"{run_id} and forerun serve {run_id}."
        )
    training = start_training(experiment, device, run)
    if not load_judged(training.folder, training.step):
        raise InvalidSettings(f"Run {run_id} has no checkpoint in {training.folder}. Finish it with --resume {run_id}.")
    return TrainedRecipe(training.step, experiment.answering)
