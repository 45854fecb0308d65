"""Instruction data in Alpaca's format: rows of `instruction, input, output`, from a file or the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.data.hub_rows import load_from_hub
from forerun.data.json_rows import SUFFIXES, read_rows
from forerun.errors import BadData

FIELDS = ("instruction", "output")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One row."""

    request: str
    """The instruction, and the input below it where there is one."""
    output: str


def instruction_of(row: Mapping[str, Any], where: str) -> Instruction:
    """A row of Alpaca's format.

    Raises:
        BadData: a field is missing or no text.
    """
    wrong = [name for name in FIELDS if not isinstance(row.get(name), str)]
    input_text = row.get("input") or ""
    if wrong or not isinstance(input_text, str):
        raise BadData(
            f"{where}: instruction data has the text fields instruction, output and perhaps input (Alpaca's format); "
            f"{', '.join(wrong) or 'input'} is missing or no text, found fields {', '.join(sorted(row)) or 'none'}. "
            f"Rename the fields of the file."
        )
    request_parts = [part for part in (row["instruction"].strip(), input_text.strip()) if part]
    return Instruction("\n\n".join(request_parts), row["output"].strip("\n"))


def read_instructions(source: str) -> list[Instruction]:
    """All rows of `source`: a file, or a data set's id on the Hugging Face hub (its split `train`).

    Raises:
        BadData: no such file or data set, or it is not in Alpaca's format.
        MissingExtra: a hub id, and the package `datasets` is not installed.
    """
    path = Path(source)
    if path.exists() or source.lower().endswith(SUFFIXES):
        rows: Sequence[Mapping[str, Any]] = read_rows(path)
    elif source.count("/") == 1 and not source.startswith((".", "/")):
        rows = _from_hub(source)
    else:
        raise BadData(
            f"data.source: a file ending in {', '.join(SUFFIXES)} or a hub id such as owner/name; found {source!r}, "
            f"which is neither. Check the path."
        )
    return [instruction_of(row, f"{source}, row {number}") for number, row in enumerate(rows, start=1)]


def _from_hub(source: str) -> Sequence[Mapping[str, Any]]:
    rows = list(load_from_hub(source, split="train"))
    if not rows:
        raise BadData(f"data.source: {source} must hold at least one row; found none.")
    return rows
