"""What a recipe offers to be swept: its usual variants, and how their runs are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forerun.records import Forecast, Measurement
from forerun.report.tables import ResultCurve, ResultTable
from forerun.settings.schema import Settings


@dataclass(frozen=True)
class SweptRun:
    """One variant of a sweep, finished."""

    name: str
    """Of the variant."""
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

    def comparison(self, runs: Sequence[SweptRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
        """Tables and curves over the finished runs, in the order of the sweep."""
        ...
