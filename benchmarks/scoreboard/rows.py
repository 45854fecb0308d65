"""Measured runs: one row each, with its source, the program that makes its step, and what was measured."""

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "rows"
HELD_OUT_SHARE = 3
"""One row in three, fixed by the hash of its id, was not looked at while the model was changed."""


@dataclass(frozen=True)
class Row:
    """One measured run."""

    id: str
    source: str
    """Where it was published, with the commit or version."""
    program: str
    """Which function of `programs` makes its step."""
    library: str
    """The set of library versions that the run used, from `libraries`."""
    gpu: str
    """Catalogue name."""
    settings: dict[str, Any]
    """Arguments of the program."""
    allocated_bytes: float | None
    reserved_bytes: float | None
    device_bytes: float | None
    step_seconds: float | None
    is_specified: bool
    """Whether the source gives everything that the step depends on; other rows are scored apart and never tuned on."""
    quantized: bool
    note: str

    @property
    def is_held_out(self) -> bool:
        """Whether the row belongs to the third that is kept for judging."""
        return int(hashlib.sha256(self.id.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def load_rows() -> list[Row]:
    """All rows of the folder, by file name and line."""
    rows = []
    for path in sorted(FOLDER.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows += [_row(line) for line in csv.DictReader(file)]
    return rows


def _row(line: dict[str, str]) -> Row:
    settings = json.loads(line["settings"])
    return Row(
        id=line["id"],
        source=line["source"],
        program=line["program"],
        library=line["library"],
        gpu=line["gpu"],
        settings=settings,
        allocated_bytes=_number(line["allocated_bytes"]),
        reserved_bytes=_number(line["reserved_bytes"]),
        device_bytes=_number(line["device_bytes"]),
        step_seconds=_number(line["step_seconds"]),
        is_specified=line["specified"] == "yes",
        quantized=settings.get("quantization", "none") != "none",
        note=line["note"],
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
