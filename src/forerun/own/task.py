"""What does each generic workload add to a run on own data? Its samples, its step, its scores and its baselines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from forerun.data.plan import BatchPlan
from forerun.forecasting.request import Generated
from forerun.own.facts import TaskFacts
from forerun.runs.recipe import Judgement
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Workload
from forerun.train.alive import TrivialLoss
from forerun.train.best import BestBy
from forerun.train.data_source import TrainingData
from forerun.verify.compare import EVERY_BASELINE, Criterion

VALIDATION = "validation_"
"""Before the name of a score between epochs."""
CALIBRATION = "ece"
COST_CRITERIA = (
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.35),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.2),
)


class PlannedData(TrainingData, Protocol):
    """Training data that know the shapes of their batches."""

    def plan(self) -> BatchPlan:
        """Shapes of an epoch's micro-batches."""
        ...


@dataclass(frozen=True)
class Task:
    """One workload on one set of data."""

    facts: TaskFacts
    tokenizer: Any
    workload: Workload
    data: PlannedData
    train_size: int
    """Training samples."""
    watched_size: int
    """Samples that are scored between epochs."""
    test_size: int
    """Test samples that judge the run."""
    final_examples: int
    """Samples that are scored once, the untrained model's among them."""
    evaluate: Callable[[TrainingStep], dict[str, float]]
    """Scores of the validation rows, named with `VALIDATION`."""
    judge: Callable[[TrainingStep], Any]
    """The model's answers to the test rows."""
    baselines: Callable[[Any], Judgement]
    """Scores of those answers, beside the baselines."""
    scores: Mapping[str, bool]
    """Scores that `evaluation.metric` may name, and whether higher is better; the first is the default."""
    assumptions: tuple[str, ...] = ()
    """What a forecast must say of the data."""
    trivial: TrivialLoss | None = None
    generated: Generated = field(default_factory=Generated)
    before: Callable[[TrainingStep, Path], None] | None = None
    """Work on the untrained model, once, before the first step; what it keeps goes into the run's folder."""

    after: Callable[[Path], None] | None = None
    """What is known of the trained model beside its weights, written into the folder of an export."""

    @property
    def default_score(self) -> str:
        """The score that the task is judged by."""
        return next(iter(self.scores))

    def best_by(self, metric: str | None) -> BestBy:
        """How checkpoints are compared."""
        name = metric or self.default_score
        return BestBy(f"{VALIDATION}{name}", is_higher_better=self.scores[name])


def criteria_of_task(score: str, *, is_higher_better: bool) -> tuple[Criterion, ...]:
    """A run must beat its strongest baseline, and cost what was forecast."""
    return (
        Criterion(
            name="beats the strongest baseline", quantity=score,
            comparison="above" if is_higher_better else "below", bound=f"{EVERY_BASELINE}{score}",
        ),
        *COST_CRITERIA,
    )  # fmt: skip


def judging_score(scores: Mapping[str, bool], metric: str | None) -> str:
    """The score of the success criterion: `metric`, else the first of `scores`.

    A constant answer can have no calibration error at all, so `ece` chooses a checkpoint and judges no run.
    """
    return next(iter(scores)) if metric is None or metric == CALIBRATION or metric not in scores else metric


def strongest(score: str, baselines: Mapping[str, Mapping[str, float]], *, is_higher_better: bool) -> str:
    """Name of the baseline with the best score."""
    best = max if is_higher_better else min
    return best(baselines, key=lambda each: baselines[each][score])


def named(baselines: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Scores of all baselines as metrics: `tf-idf.macro_f1`."""
    return {f"{name}.{key}": value for name, scores in baselines.items() for key, value in scores.items()}


def watched(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores of the validation rows under their names."""
    return {f"{VALIDATION}{name}": value for name, value in scores.items()}
