"""Measured runs: one row each, with its source, the program that makes its step, and what was measured.

Two boards. *User*: the forecast goes through a user's door, a settings file or `forerun.forecast_step`, and knows what
the source's documentation states. *Exact*: the program that the source ran, with its libraries (`programs.py`).

A row is *seen* once anybody looked at its error; it stays so for ever and counts to the half that is fitted. The rest
is split by family, before the first forecast: the test half is scored in aggregate only.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.split import in_test_half

from forerun.units import GIB

FOLDER = Path(__file__).parent / "rows"
ADDED = Path(__file__).parent / "added"
"""Sources that came later, scored apart, with a board and a history of their own."""
DOORS = ("settings", "image-training", "squad-training")
"""Programs that are a user's door; the others are the exact program."""


@dataclass(frozen=True)
class Row:
    """One measured run."""

    id: str
    source: str
    """Where it was published, with the commit or version."""
    family: str
    """Group of configurations that stays in one half."""
    program: str
    """`settings`, or which function of `programs` makes its step."""
    library: str
    """The set of library versions that the run used, from `libraries`."""
    gpu: str
    """Catalogue name."""
    card_bytes: float | None
    """Memory of the card where the catalogue's GPU stands for another one."""
    settings: dict[str, Any]
    """Arguments of the program."""
    outcome: str
    """`ran`, `oom`, or empty where the run is no question of memory."""
    allocated_bytes: float | None
    reserved_bytes: float | None
    device_bytes: float | None
    step_seconds: float | None
    run_seconds: float | None
    """A whole run."""
    covers: str
    """What of a run was timed: `training`, without start-up, or `all` of the program."""
    is_specified: bool
    """Whether the source gives everything that the step depends on; other rows are scored apart and never tuned on."""
    quantized: bool
    note: str

    is_seen: bool

    @property
    def board(self) -> str:
        """`user` or `exact`."""
        return "user" if self.program in DOORS else "exact"

    @property
    def is_compiled(self) -> bool:
        """Whether its settings compile the step."""
        return self.settings.get("settings", {}).get("compile", "none") != "none"

    @property
    def is_test(self) -> bool:
        """Whether the row belongs to the half that is never fitted and never looked at."""
        return not self.is_seen and self.judges_ranges

    @property
    def judges_ranges(self) -> bool:
        """Whether the widths of time ranges are judged by the row, seen or not, and so not fitted to it."""
        return in_test_half(self.family)


def load_rows(folder: Path = FOLDER) -> list[Row]:
    """All rows of a folder, by file name and line."""
    rows = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows += [row_from(line) for line in csv.DictReader(file)]
    return rows


def row_from(line: dict[str, str]) -> Row:
    """A row of a line of a file."""
    settings = json.loads(line["settings"])
    is_quantized = settings.get("settings", settings).get("quantization", "none") != "none"
    return Row(
        id=line["id"],
        source=line["source"],
        family=line["family"],
        program=line["program"],
        library=line["library"],
        gpu=line["gpu"],
        card_bytes=float(line["card_gib"]) * GIB if line["card_gib"] else None,
        settings=settings,
        outcome=line["outcome"],
        allocated_bytes=_number(line["allocated_bytes"]),
        reserved_bytes=_number(line["reserved_bytes"]),
        device_bytes=_number(line["device_bytes"]),
        step_seconds=_number(line["step_seconds"]),
        run_seconds=_number(line.get("run_seconds", "")),
        covers=line.get("covers", ""),
        is_specified=line["specified"] == "yes",
        quantized=is_quantized,
        note=line["note"],
        is_seen=line["seen"] == "yes",
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
