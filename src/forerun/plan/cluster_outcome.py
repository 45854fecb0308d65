"""What does a plan over numbers of GPUs say, as plain data? The JSON document `forerun.cluster-plan/1`. No torch."""

from typing import Any, Literal

from pydantic import Field

from forerun.plan.outcome import RunPlan
from forerun.records import Record

CLUSTER_PLAN_SCHEMA = "forerun.cluster-plan/1"
Cause = Literal[
    "memory", "batch", "heads", "refused", "communication", "bubble", "operators", "not-traced"
]  # fmt: skip
"""Why a layout lost: too much memory; too small a batch for each rank; heads not divisible or too few blocks; cannot be
built; waits for exchanges; stages of a pipeline wait for each other; slower operators; a bound showed that
it cannot win, or others come before it."""


class LostLayout(Record):
    """One layout of one number of GPUs that was not taken."""

    gpus: int
    layout: str
    cause: Cause
    text: str
    """Why, with numbers."""
    step_seconds: float | None = None
    """Estimated; null where it was not."""
    is_untraced: bool = False
    """Arithmetic or a bound was enough."""


class ClusterRow(Record):
    """The best layout of one number of GPUs; what follows `why_not` is null where nothing fits."""

    gpus: int
    machines: int
    fits: bool
    why_not: str = ""
    layout: str = ""
    parallel: dict[str, Any] = {}
    """The section of the settings."""
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    activation_checkpointing: str | None = None
    device_bytes: float | None = None
    """Most that one GPU needs (conservative)."""
    step_seconds: float | None = None
    communication_fraction: float | None = None
    """Share of the step in which GPUs wait for exchanges."""
    mfu: float | None = None
    run_seconds: float | None = None
    """Expected; with failures where the settings name some."""
    cost: float | None = None
    """Dollars; null where no price is known."""
    keeps_limits: bool = False
    is_on_front: bool = False
    """No other number is both faster and cheaper."""


class ClusterPlan(Record):
    """One run over numbers of GPUs."""

    schema_: Literal["forerun.cluster-plan/1"] = Field(default=CLUSTER_PLAN_SCHEMA, alias="schema")
    plan: RunPlan
    """The number and layout to take, as `forerun plan` says it."""
    gpus: int | None
    """Of the plan; null when nothing fits."""
    rows: list[ClusterRow]
    lost: list[LostLayout]
    """Every other layout, and why."""
    layouts: int
    """That were looked at."""
    pruned: dict[str, int]
    """Layouts that were never traced, by cause."""
    workers: int
