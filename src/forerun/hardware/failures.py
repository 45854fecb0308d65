"""How many hours pass between failures of one GPU of a training job? Published clusters, in `failures.toml`.

A job's interruptions are divided by its GPU hours, whatever broke: GPU, host, network or software. Not covered: rates
that change with the age of a cluster, failures that come together, silent errors that stop nothing.
"""

import tomllib
from functools import cache
from importlib.resources import files

from forerun.errors import InvalidSettings, nearest
from forerun.records import Record


class PublishedFailures(Record):
    """What one report counts."""

    name: str
    gpus: int
    """Of the job, or about those of the cluster."""
    gpu: str
    """Catalogue name."""
    gpu_hours: float
    """Observed."""
    interruptions: float
    """In those hours."""
    counts: str
    """What is counted, in words."""
    source: str

    @property
    def hours_between(self) -> float:
        """GPU hours to one interruption."""
        return self.gpu_hours / self.interruptions


@cache
def published_failures() -> dict[str, PublishedFailures]:
    """All reports by name."""
    text = files("forerun.hardware").joinpath("failures.toml").read_text(encoding="utf-8")
    rows = [PublishedFailures(**row) for row in tomllib.loads(text)["cluster"]]
    return {row.name: row for row in rows}


def failures_of(choice: float | str | None) -> tuple[float, str]:
    """Hours between failures of one GPU, infinite where nothing fails, and where they come from in words.

    Raises:
        InvalidSettings: no report of that name.
    """
    if choice is None:
        return float("inf"), "no failures"
    if not isinstance(choice, str):
        return choice, f"{choice:,.0f} hours between failures of a GPU, as set"
    rows = published_failures()
    if choice not in rows:
        raise InvalidSettings(
            f"reliability.failures: hours between failures of one GPU, or a published cluster; found {choice!r}. "
            f"Nearest: {nearest(choice, list(rows))}. All: {', '.join(rows)}."
        )
    row = rows[choice]
    return row.hours_between, f"{row.hours_between:,.0f} hours between failures of a GPU ({row.name}: {row.counts})"
