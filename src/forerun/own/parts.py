"""Rows of own data in one form, in three parts: training, validation, test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.data.labelled_text import uniform
from forerun.data.own.canonical import checked_row
from forerun.data.own.formats import SAMPLE_ROWS, RowLayout, layout_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData
from forerun.settings.schema import Settings


@dataclass(frozen=True)
class OwnParts:
    """Canonical rows of the three parts, with how they were read."""

    layout: RowLayout
    train: Sequence[Any]
    validation: Sequence[Any]
    test: Sequence[Any]
    notes: tuple[str, ...] = ()
    """Sentences on rows that were left out or mended."""

    @property
    def format(self) -> str:
        """What a row is."""
        return self.layout.format

    @property
    def fields(self) -> Mapping[str, str]:
        """Column of each part of a row."""
        return self.layout.fields


def read_parts(settings: Settings) -> OwnParts:
    """Read, recognise and split the rows of `data.source`.

    Raises:
        BadData: they cannot be read or told apart, or a part of them has no rows.
    """
    data = settings.data
    assert data.source is not None
    raw = list(read_own_rows(data.source, data.repair))
    layout, repairs = layout_of(data, raw[:SAMPLE_ROWS], settings.workload), Repairs(data.repair)
    parts: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}
    for number, row in enumerate(raw, start=1):
        record = checked_row(row, layout, f"{data.source}, row {number}", repairs)
        if record is not None:
            parts[_part(str(row.get("split", "")).lower(), number, settings)].append(record)
    for name, rows in parts.items():
        if not rows:
            raise BadData(f"{data.source}: the part {name} has no rows; found {len(raw)} in all. Give more rows.")
    return OwnParts(layout, parts["train"], parts["validation"], parts["test"], tuple(repairs.lines()))


def _part(split: str, number: int, settings: Settings) -> str:
    """Part of a row: the file's own, or drawn; validation rows are drawn from training rows where a file has none."""
    place, shares = uniform("own part", str(number)), settings.data
    assert not isinstance(shares.validation, str)
    assert not isinstance(shares.test, str)
    if split in ("val", "valid", "validation", "dev", "test"):
        return "test" if split == "test" else "validation"
    if split:
        return "validation" if place < shares.validation else "train"
    return "test" if place < shares.test else "validation" if place < shares.test + shares.validation else "train"
