"""What does a recipe offer `forerun tune` to search? Settings, their bounds, and what a search asks of the recipe.

A dimension is a setting by its dotted path, or a name that the recipe's `search_overrides` turns into settings. What a
study must not search is refused when a dimension is made: the seed, the metric, and what is judged. The number format
is searched only where somebody asks for it: its scores compare, but it hardly moves them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.errors import InvalidSettings
from forerun.forecasting.request import require_precision
from forerun.hardware.catalogue import Device
from forerun.runs.recipe import Experiment
from forerun.runs.sweep import values_of
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

Value = float | int | str | bool
NEVER_SEARCHED = {
    "seed": "the best of several seeds is luck, which the next run does not have",
    "recipe.metric": "scores of two metrics are two quantities, of which neither is the better",
    "recipe.judged_on": "trials judged on other rows are not comparable, and test rows are scored once",
    "evaluation.judged_on": "trials judged on other rows are not comparable, and test rows are scored once",
    "evaluation.metric": "scores of two metrics are two quantities, of which neither is the better",
    "recipe.folds": "means over other folds are scores of other rows",
    "recipe.fold": "another fold is other rows",
    "data.source": "other data are other rows to be judged on",
}
"""Settings that no study searches, and why their scores do not compare."""
PRECISION = "precision"


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
    is_asked_for: bool = False
    """Whether the user named it, and no recipe: only then may it be the number format."""

    def __post_init__(self) -> None:
        if self.name in NEVER_SEARCHED:
            raise ValueError(f"{self.name} is fixed in a study: {NEVER_SEARCHED[self.name]}")
        if self.name == PRECISION and not self.is_asked_for:
            raise ValueError(f"{self.name} is fixed in a study: its effect is time; tune --search {PRECISION}=… asks")
        if bool(self.values) == (self.low < self.high):
            raise ValueError(f"{self.name}: give values, or a low end below a high end")

    def is_asked(self, point: Mapping[str, Value]) -> bool:
        """Whether the dimension matters, by the values of `point` so far."""
        return self.only_if is None or point.get(self.only_if[0]) in self.only_if[1]

    def nearest(self, value: Any) -> Value:
        """A setting as a value of the dimension: itself, an end of the range, or the last of the values."""
        if self.values:
            return value if value in self.values else self.values[-1]
        return min(max(float(value), self.low), self.high)


def asked_dimensions(options: Sequence[str], base: Settings, device: Device) -> list[Dimension]:
    """The dimensions of `PATH=A,B,…`, which the user wants searched beside those of the recipe.

    Raises:
        InvalidSettings: a path that no study searches, with the reason; a value that is wrong, or that `device` cannot
            run; fewer than two values.
    """
    dimensions = []
    for option in options:
        path, _, text = (part.strip() for part in option.partition("="))
        values = values_of(text)
        if path in NEVER_SEARCHED:
            raise InvalidSettings(f"--search: {path} is fixed in a study: {NEVER_SEARCHED[path]}. Leave it out.")
        if len(set(values)) < 2 or len(set(values)) < len(values):
            raise InvalidSettings(f"--search: PATH=A,B,… with two values or more, each once; found {option!r}.")
        for value in values:
            settings = settings_from(base.model_dump(), (f"{path}={value}",))
            if path == PRECISION:
                _require_comparable(settings, device)
        dimensions.append(Dimension(name=path, values=tuple(values), is_asked_for=True))
    return dimensions


def _require_comparable(settings: Settings, device: Device) -> None:
    """Refuse a number format that only an emulation would try.

    Raises:
        InvalidSettings: the device does not have it.
    """
    try:
        require_precision(settings, device)
    except InvalidSettings as error:
        raise InvalidSettings(
            f"--search: trials in {settings.precision} would not compare with the others here: they would be refused, "
            f"or their time would be that of an emulation, and time is what a number format is searched for. {error}"
        ) from error


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
