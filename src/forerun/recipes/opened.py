"""A recipe with its data loaded: what forecasting, training, judging and reporting it need."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.data.plan import BatchPlan
from forerun.forecasting.request import Generated, KnownTimes
from forerun.hardware.catalogue import Device
from forerun.report.tables import ResultCurve, ResultTable
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Workload
from forerun.train.alive import TrivialLoss
from forerun.train.data_source import TrainingData
from forerun.train.loop import Evaluate, Watch
from forerun.verify.compare import Criterion

COLLATED_STEPS = 4
"""Steps whose batches are made to time the data."""


@dataclass(frozen=True)
class Judgement:
    """What the final evaluation of a run found."""

    metrics: dict[str, float]
    tables: list[ResultTable]
    curves: list[ResultCurve] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    """For comparisons between runs, as JSON: outcomes per test sample, curves over training."""


@dataclass(frozen=True)
class OpenedRecipe:
    """One recipe, ready."""

    settings: Settings
    """With the data's sizes filled in."""
    workload: Workload
    data: TrainingData
    plan: BatchPlan
    load_seconds: float
    """Reading and tokenising."""
    final_examples: int
    """Samples that `judge` scores."""
    evaluate: Evaluate
    """Scores between epochs."""
    judge: Callable[[TrainingStep], Any]
    """The model's part of the final evaluation: scores of held-out data."""
    baselines: Callable[[Any], Judgement]
    """From those scores to figures, beside the mandatory baselines."""
    criteria: tuple[Criterion, ...]
    save_beside: Callable[[Path], None] | None = None
    """Writes what a model's users need beside its weights (a tokeniser) into a folder."""
    write_card: Callable[[Any, Path], None] | None = None
    """From the scores of `judge`: writes what is known of an exported model's quality into its folder."""
    write_onnx: Callable[[TrainingStep, Path], float] | None = None
    """Writes the model for ONNX Runtime, too, and returns how far its scores lie from the model's, at most."""
    trivial: TrivialLoss | None = None
    """What the training loss must fall below for the run to count as alive."""
    watch: Watch | None = None
    """Looks at every training step; may stop the run."""
    generated: Generated = Generated()
    """What `evaluate` and `judge` generate."""
    once_seconds: float = 0.0
    """What a run computes at its start and keeps for later ones; expected, when only lengths were read."""
    more_data_seconds_per_step: float = 0.0
    """What making batches will take beside what is timed here, when only lengths were read."""

    def known_times(self, device: Device) -> KnownTimes:
        """What is known before the run: loading is done, and where the run will be here, collation can be timed."""
        if device.kind != "cpu":
            return KnownTimes(final_evaluation_examples=self.final_examples, generated=self.generated)
        steps = self.data.epoch_steps(0)[:COLLATED_STEPS]
        start = time.perf_counter()
        for step in steps:
            for indices in step:
                self.data.collate(indices)
        return KnownTimes(
            startup_seconds=self.load_seconds,
            once_seconds=self.once_seconds,
            data_seconds_per_step=self.more_data_seconds_per_step + (time.perf_counter() - start) / len(steps),
            final_evaluation_examples=self.final_examples,
            generated=self.generated,
        )
