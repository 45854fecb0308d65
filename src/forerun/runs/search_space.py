"""What does a recipe offer `forerun tune` to search? Settings, their bounds, and what a search asks of the recipe.

A dimension is a setting by its dotted path, or a name that the recipe's `search_overrides` turns into settings. What a
study must not search is refused when a dimension is made: the seed, the number format, the metric, and what is judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.runs.recipe import Experiment
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

Value = float | int | str | bool
NEVER_SEARCHED = (
    "seed", "precision", "recipe.metric", "recipe.judged_on", "recipe.folds", "recipe.fold", "data.source",
)  # fmt: skip
"""A search over these compares what cannot be compared, or selects luck."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One searched setting: a choice of `values`, or a number from `low` to `high`."""

    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    is_logarithmic: bool = False
    only_if: tuple[str, tuple[Value, ...]] | None = None
    """Name and values of an earlier dimension: this one matters only where that one has one of these values."""

    def __post_init__(self) -> None:
        if self.name in NEVER_SEARCHED:
            raise ValueError(f"{self.name} is fixed in a study: trials must differ in nothing that makes their score")
        if bool(self.values) == (self.low < self.high):
            raise ValueError(f"{self.name}: give values, or a low end below a high end")

    def is_asked(self, point: Mapping[str, Value]) -> bool:
        """Whether the dimension matters, by the values of `point` so far."""
        return self.only_if is None or point.get(self.only_if[0]) in self.only_if[1]


class Searchable(Protocol):
    """A recipe that can be searched."""

    TRIAL: tuple[str, ...]
    """Overrides of every trial, which leave the test rows alone."""

    def search_space(self, experiment: Experiment) -> Sequence[Dimension]:
        """What is searched around the settings of the experiment, each after those it depends on."""
        ...

    def search_start(self, experiment: Experiment) -> Mapping[str, Value]:
        """The settings themselves as a point of the space: the first trial."""
        ...

    def search_overrides(self, point: Mapping[str, Value], experiment: Experiment) -> list[str]:
        """A point of the space as `dotted.path=value`."""
        ...

    def step_class(self, settings: Settings) -> Settings:
        """The settings with everything set alike that a step's time and memory do not depend on."""
        ...

    def searched_score(self, metrics: Mapping[str, float], settings: Settings) -> tuple[float, float]:
        """What a finished trial scored, the higher the better, and the standard error of that."""
        ...

    def baseline_scores(self, experiment: Experiment) -> Mapping[str, float]:
        """What the mandatory baselines score where trials do."""
        ...

    def held_out_scores(self, experiment: Experiment, step: TrainingStep) -> Any:
        """A finalist's answers to the rows that no search has seen."""
        ...

    def final_comparison(
        self, experiment: Experiment, scores: Mapping[str, Sequence[Any]], winner: str, start: int
    ) -> dict[str, Any]:
        """Figures on the test rows: `metric`, `rows`, `metrics` of the winner's starting point with those of the
        baselines, `over_baselines`, and `finalists` by trial with `scores` and `below_winner`."""
        ...

    def criteria_for(self, settings: Settings) -> tuple[Criterion, ...]:
        """What the winner must meet on the test rows."""
        ...
