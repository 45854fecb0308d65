"""The record of a measured step beside its forecast: `forerun verify --measured`."""

from typing import Literal

from pydantic import Field

from forerun.experience import StepObservation
from forerun.records import Record, VerdictRow

MISS_SCHEMA = "forerun.miss/1"


class MissTerm(Record):
    """One term of the forecast, and what it would be under the nearest cause; seconds or bytes by its name."""

    field: str
    forecast: float
    nearest: float


class MissCause(Record):
    """One explanation: what it would make of the step, and how far that is from what was measured."""

    text: str
    change: str
    """The change of settings as `--set` takes it; empty where it is none."""
    step_seconds: float
    memory_bytes: float
    """Bytes of the counter that was measured."""
    distance: float
    """Standard deviations from all measured numbers, the cause's own likelihood included; the list is by it."""
    is_near: bool
    """Both numbers lie inside the spread that the forecast has."""


class MissExplanation(Record):
    """A measured step beside its forecast, and what would explain the difference."""

    schema_: Literal["forerun.miss/1"] = Field(default=MISS_SCHEMA, alias="schema")
    settings_hash: str
    gpu: str
    observation: StepObservation
    rows: list[VerdictRow]
    as_forecast: bool
    """Both numbers lie inside the spread of the forecast, so there may be nothing to explain."""
    worst_terms: list[MissTerm]
    """Terms that the nearest cause changes most, one of time and one of memory at most."""
    causes: list[MissCause]
    tried: int
    """Alternatives that were forecast."""
    not_tried: str = ""
    """Why kinds of causes were left out; empty where none was."""
    is_kept: bool = False
    """Entered in the ledger, for the next forecast."""
