"""What planning found, as plain data: the settings chosen, why, and what was tried beside them. No torch.

Bytes, seconds and dollars are those of forecasts; `Plan` is the JSON document `forerun.plan/1` of `forerun plan`,
`Migration` that of `forerun plan --from … --to …`.
"""

from typing import Any, Literal

from pydantic import Field

from forerun.records import Forecast, Record

PLAN_SCHEMA = "forerun.plan/1"
MIGRATION_SCHEMA = "forerun.migration/1"


class Change(Record):
    """One setting that the plan changes."""

    path: str
    """Dotted, as `--set` takes it."""
    old: Any
    new: Any

    @property
    def said(self) -> str:
        """`path old → new`."""
        return f"{self.path} {_shown(self.old)} → {_shown(self.new)}"


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


class Reason(Record):
    """One line of why: about a setting (`about`), in words with numbers."""

    about: str
    said: str


class FrontPoint(Record):
    """A candidate that no other beats in time, memory and cost at once."""

    gpu: str
    changes: list[Change]
    """From the given settings."""
    micro_batch_size: int
    step_seconds: float
    run_seconds: float
    device_bytes: float
    """Conservative, as `Forecast.fits` counts."""
    cost: float | None
    is_chosen: bool = False


class Remedy(Record):
    """A change that was not allowed or not asked for, and what it would bring."""

    change: str
    said: str
    device_bytes: float | None = None
    run_seconds: float | None = None
    cost: float | None = None


class Plan(Record):
    """The plan of one run."""

    schema_: Literal["forerun.plan/1"] = Field(default=PLAN_SCHEMA, alias="schema")
    name: str
    gpu: str | None
    """Where to run; null when it fits none of those asked about."""
    fits: bool
    meets_limits: bool
    """It fits and keeps the deadline and the budget."""
    deadline_seconds: float | None = None
    budget: float | None = None
    settings: dict[str, Any] | None
    """Complete; null when nothing fits."""
    changes: list[Change] = []
    forecast: Forecast | None
    given: Forecast | None
    """Of the settings as they were given, on the chosen device; null where they cannot run there."""
    front: list[FrontPoint] = []
    reasons: list[Reason] = []
    rejected: list[Reason] = []
    remedies: list[Remedy] = []
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
    before: Plan
    after: Plan
    rows: list[MigrationRow]
    like_for_like_speed_up: float | None
    """Step time of the first plan's settings on the first GPU over that on the second; null where they cannot run."""
    plan_speed_up: float | None
    """Run time of the first plan over that of the second."""
    learning_rate_rule: str
    search_seconds: float
