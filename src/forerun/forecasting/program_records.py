"""What a forecast says of the run of a program, beside what every forecast says."""

from typing import Any

from forerun.records import Record


class ScriptReport(Record):
    """How the program ran on the virtual GPU."""

    command: str
    exit_code: int
    steps_seen: int
    warm_from_step: int | None
    """Number of the first warm step, from 1; null where no step was warm."""
    wall_seconds: float
    host_peak_bytes: int
    length_known_from: str | None
    """Who says how many steps the whole run has; null where nobody does."""


class AssumedValue(Record):
    """A value of the device that nobody can know, and what the program was told."""

    line: str
    what: str
    value: str


class OutOfMemoryPoint(Record):
    """Where the program ran out of the card's memory."""

    line: str
    tried_bytes: int
    allocated_bytes: int
    alive: list[dict[str, Any]] = []


class CardForecast(Record):
    """One of several cards that the program's process drives by itself."""

    number: int
    fits: bool
    peak_allocated_bytes: int
    device_bytes: int
    """Expected."""


class RankForecast(Record):
    """One of several ranks that were run."""

    rank: int
    fits: bool
    peak_allocated_bytes: int
    device_bytes: int
    """Expected."""
    step_seconds: float
    """Expected."""
