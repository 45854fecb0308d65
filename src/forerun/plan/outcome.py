"""What does a plan say, as plain data: the settings chosen, why, and what was tried beside them. No torch.

Bytes, seconds and dollars are those of forecasts; `Plan` is the JSON document `forerun.plan/1` of `forerun plan`,
`Migration` that of `forerun plan --from … --to …`, `Comparison` that of `forerun compare`.
"""

from typing import Any, Literal

from pydantic import Field

from forerun.records import Forecast, Record

PLAN_SCHEMA = "forerun.plan/1"
MIGRATION_SCHEMA = "forerun.migration/1"
COMPARISON_SCHEMA = "forerun.gpus/1"


class SettingChange(Record):
    """One setting that the plan changes."""

    path: str
    """Dotted, as `--set` takes it."""
    old: Any
    new: Any

    @property
    def description(self) -> str:
        """The change as one text: `path old → new`."""
        return f"{self.path} {_yaml_word(self.old)} → {_yaml_word(self.new)}"


def _yaml_word(value: Any) -> str:
    return "null" if value is None else str(value)


class Reason(Record):
    """One line of why: about a setting (`about`), in words with numbers."""

    about: str
    said: str


class FrontPoint(Record):
    """A candidate that no other beats in time, memory and cost at once."""

    gpu: str
    changes: list[SettingChange]
    """Changes from the original settings."""
    micro_batch_size: int
    step_seconds: float
    run_seconds: float
    device_bytes: float
    """Most that the device needs (conservative), as `Forecast.fits` counts."""
    cost: float | None
    is_chosen: bool = False


class Remedy(Record):
    """A change that was not allowed or not asked for, and what it would bring."""

    change: str
    said: str
    device_bytes: float | None = None
    run_seconds: float | None = None
    cost: float | None = None


class WhatIf(Record):
    """One change of settings, and what it does to memory and time."""

    change: str
    """The change as `--set` takes it."""
    more_bytes: float
    """Bytes more that the device needs, conservative; negative where it saves."""
    time_ratio: float
    """Time of all steps with the change over that without."""
    device_bytes: float
    fits: bool
    changes_method: bool
    """It changes what is trained, not only how."""


class Confirmation(Record):
    """A candidate of which real steps were run."""

    changes: list[SettingChange]
    """Changes from the original settings."""
    forecast_step_seconds: float
    measured_step_seconds: float | None
    """Null where it failed."""
    failed: str = ""
    is_chosen: bool = False


class RunPlan(Record):
    """The plan of one run."""

    schema_: Literal["forerun.plan/1"] = Field(default=PLAN_SCHEMA, alias="schema")
    name: str
    gpu: str | None
    """Name of the GPU to run on; null when the run fits none of those asked about."""
    fits: bool
    meets_limits: bool
    """It fits and keeps the deadline and the budget."""
    deadline_seconds: float | None = None
    budget: float | None = None
    settings: dict[str, Any] | None
    """Complete; null when nothing fits."""
    changes: list[SettingChange] = []
    forecast: Forecast | None
    given: Forecast | None
    """Forecast of the original settings on the chosen device; null where they cannot run there."""
    front: list[FrontPoint] = []
    reasons: list[Reason] = []
    rejected: list[Reason] = []
    remedies: list[Remedy] = []
    what_if: list[WhatIf] = []
    """Single changes of the chosen settings, where they were asked for."""
    contenders: list[dict[str, Any]] = []
    """Settings of the fastest candidates on the chosen device by forecast, the plan's choice first."""
    confirmed: list[Confirmation] = []
    """The contenders measured, where that was asked for."""
    warnings: list[str] = []
    search_seconds: float
    traces: int
    """Steps that were traced."""


class MigrationRow(Record):
    """One line of the what-changed-and-why table."""

    what: str
    before: str
    after: str
    why: str


class Migration(Record):
    """Plans of one run on two GPUs, and what changes between them."""

    schema_: Literal["forerun.migration/1"] = Field(default=MIGRATION_SCHEMA, alias="schema")
    before: RunPlan
    after: RunPlan
    rows: list[MigrationRow]
    like_for_like_speed_up: float | None
    """Step time of the first plan's settings on the first GPU over that on the second; null where they cannot run."""
    plan_speed_up: float | None
    """Run time of the first plan over that of the second."""
    learning_rate_rule: str
    search_seconds: float


class ComparisonRow(Record):
    """One GPU of a comparison; what follows `why_not` is null where it does not fit."""

    gpu: str
    capacity_bytes: int
    price_per_hour: float | None
    fits: bool
    why_not: str = ""
    changes: list[SettingChange] = []
    """Changes from the original settings."""
    micro_batch_size: int | None = None
    device_bytes: float | None = None
    """Most that the device needs (conservative), as `Forecast.fits` counts."""
    step_seconds: float | None = None
    run_seconds: float | None = None
    cost: float | None = None
    """Dollars of the run; null where no price is known."""
    keeps_limits: bool = False
    is_on_front: bool = False
    """No other GPU is both faster and cheaper."""
    is_full_forecast: bool = False
    """Else steps are forecast, and what is beside them is taken over."""


class GpuComparison(Record):
    """One run on several GPUs."""

    schema_: Literal["forerun.gpus/1"] = Field(default=COMPARISON_SCHEMA, alias="schema")
    name: str
    deadline_seconds: float | None = None
    budget: float | None = None
    rows: list[ComparisonRow]
    fastest: str | None
    cheapest: str | None
    chosen: str | None
    """Keeps the limits: the cheapest where there is a deadline alone, else the fastest; null when none does."""
    search_seconds: float
    traces: int
