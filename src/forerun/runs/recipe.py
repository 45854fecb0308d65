"""What must a recipe provide? The one interface by which the run engine knows a workload.

A recipe is a Python package that an entry point of the group `forerun.recipes` names (`runs/registry.py`). Its module
`recipe` must have `SETTINGS`, `CRITERIA` and `load_experiment`: see `Recipe`. It may have more, each asked for only
where a command needs it:

    criteria_for(settings)                  criteria that depend on the settings, in place of CRITERIA
    related_tables(ledger, run_id)          tables on a run from the ledger's other runs, for its page and JSON
    VARIANTS, comparison(runs)              `forerun sweep`: see `Sweepable`
    search_space(experiment) and others     `forerun tune`: see `runs.search_space.Searchable`

`load_experiment` returns an `Experiment`: settings, the training step's workload (`step/workload.py`), data and
evaluation. `runs/conformance.py` checks a recipe against this page; every recipe's tests call it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forerun.data.plan import BatchPlan
from forerun.forecasting.request import Generated, MeasuredTimes
from forerun.hardware.catalogue import Device
from forerun.records import Forecast, Measurement
from forerun.report.tables import ResultCurve, ResultTable
from forerun.settings.schema import Settings
from forerun.verify.compare import Criterion

if TYPE_CHECKING:  # who looks recipes up by name has no need of PyTorch
    from forerun.step.training_step import TrainingStep
    from forerun.step.workload import Workload
    from forerun.train.alive import TrivialLoss
    from forerun.train.best import BestBy
    from forerun.train.data_source import TrainingData
    from forerun.train.loop import Evaluate, Watch

COLLATED_STEPS = 4
"""Steps whose batches are made to time the data."""


@dataclass(frozen=True)
class Judgement:
    """Scores, tables and curves of a run's final evaluation."""

    metrics: dict[str, float]
    """Scores by name; criteria ask for these names."""
    tables: list[ResultTable]
    """Tables for the terminal and the run's page."""
    curves: list[ResultCurve] = field(default_factory=list)
    comparison_data: dict[str, Any] = field(default_factory=dict)
    """What comparisons between runs need, as JSON: outcomes per test sample, curves over training."""


@dataclass(frozen=True)
class Answering:
    """How the trained model of a recipe is asked, for `forerun predict` and `forerun generate`."""

    column: str
    """Column of a row that holds the question."""
    answer: "Callable[[TrainingStep, Sequence[str], int], list[dict[str, Any]]]"
    """Step with the trained model, questions, most new tokens → an answer to each, by column."""
    text_column: str | None = None
    """Column of the answer that is text, which `generate` prints; None where a model writes none."""


@dataclass(frozen=True)
class Experiment:
    """One run of a recipe with its data loaded, ready to forecast, train and judge."""

    settings: Settings
    """The settings asked for, with the sizes of the data filled in."""
    workload: "Workload"
    """Model, batch and loss of the training step."""
    data: "TrainingData"
    """Micro-batches: `collate` returns CPU tensors, samples first: ids (B, T), labels (B,) or (B, T)."""
    plan: BatchPlan
    """Shapes (B, T) of an epoch's micro-batches and how often each occurs."""
    load_seconds: float
    """Seconds that reading and tokenising took."""
    final_examples: int
    """Number of samples that `judge` scores."""
    evaluate: "Evaluate"
    """Scores between epochs, by name: (step, optimizer steps done) → scores."""
    judge: "Callable[[TrainingStep], Any]"
    """The model's part of the final evaluation: the training step → answers to held-out samples, in any form."""
    baselines: Callable[[Any], Judgement]
    """Turns what `judge` returned into figures, with the mandatory baselines in the tables."""
    criteria: tuple[Criterion, ...]
    """What the run must reach under these settings."""
    save_assets: Callable[[Path], None] | None = None
    """Writes into a folder what users of the model need with its weights, such as a tokeniser."""
    evaluation_examples: int | None = None
    """Number of samples that `evaluate` scores; None: `evaluation.examples`."""
    write_card: Callable[[Any, Path], None] | None = None
    """Writes the quality of an exported model, by what `judge` returned, into its folder."""
    write_onnx: "Callable[[TrainingStep, Path], float] | None" = None
    """Writes the model for ONNX Runtime too; returns the largest absolute difference between scores of both."""
    write_gguf: "Callable[[TrainingStep, Path], float] | None" = None
    """Writes the model for llama.cpp too; returns the largest difference of a log-probability."""
    trivial: "TrivialLoss | None" = None
    """The loss, in nats, that the training loss must fall below for the run to count as alive."""
    watch: "Watch | None" = None
    """Looks at every training step; may stop the run."""
    best_by: "BestBy | None" = None
    """Score of `evaluate` by which the judged model is chosen; None judges the last one."""
    before: "Callable[[TrainingStep, Path], None] | None" = None
    """Called once the model is built and before any step of a process, with the run's folder."""
    answering: Answering | None = None
    """How the trained model is asked; None for a recipe that is used otherwise."""
    generated: Generated = Generated()
    """Number and length, in tokens, of the texts that `evaluate` and `judge` generate."""
    once_seconds: float = 0.0
    """Seconds of what a run computes at its start and keeps for later runs; expected, when only lengths were read."""
    extra_data_seconds_per_step: float = 0.0
    """Seconds of making batches beyond what is timed here, when only lengths were read."""

    def known_times(self, device: Device) -> MeasuredTimes:
        """Times known before the run: loading is done, and collation is timed where the run will be on this machine."""
        if device.kind != "cpu":
            return MeasuredTimes(
                final_evaluation_examples=self.final_examples, evaluation_examples=self.evaluation_examples,
                generated=self.generated,
            )  # fmt: skip
        steps = self.data.epoch_steps(0)[:COLLATED_STEPS]
        start = time.perf_counter()
        for step in steps:
            for indices in step:
                self.data.collate(indices)
        return MeasuredTimes(
            startup_seconds=self.load_seconds,
            once_seconds=self.once_seconds,
            data_seconds_per_step=self.extra_data_seconds_per_step + (time.perf_counter() - start) / len(steps),
            final_evaluation_examples=self.final_examples,
            evaluation_examples=self.evaluation_examples,
            generated=self.generated,
        )


class Recipe(Protocol):
    """The module `recipe` of a recipe's package."""

    SETTINGS: Settings
    """What `forerun run NAME` runs: minutes on two CPU cores, offline."""
    CRITERIA: tuple[Criterion, ...]
    """What a run must reach; names are those of `Judgement.metrics` or fields of `Measurement`."""

    def load_experiment(self, settings: Settings, *, lengths_only: bool = False) -> Experiment:
        """Read, split and tokenise the data of `settings`.

        With `lengths_only` nothing is asked of the experiment but `known_times`, `plan`, `settings` and `workload`: a
        forecast needs no rows, and sizes that the settings state stand in for data that is not here.
        """
        ...


@dataclass(frozen=True)
class SweepRun:
    """One variant of a sweep, finished."""

    name: str
    """Name of the variant."""
    settings: Settings
    forecast: Forecast
    measurement: Measurement
    """Its `metrics` hold every score of the run's `Judgement`."""
    results: Mapping[str, Any] = field(default_factory=dict)
    """What the run's `Judgement` keeps for comparisons (`kept`): outcomes per test sample, curves over training."""


class Sweepable(Protocol):
    """A recipe that `forerun sweep` knows the variants of."""

    VARIANTS: Mapping[str, tuple[str, ...]]
    """Name of each variant and the `dotted.path=value` overrides that make it."""

    def comparison(self, runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
        """Tables and curves over the finished runs, in the order of the sweep."""
        ...
