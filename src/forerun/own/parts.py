"""Rows of own data in one form, in three parts: training, validation, test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from forerun.data.own.formats import SAMPLE_ROWS, RowLayout, layout_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import rows_of
from forerun.data.own.splits import PARTS, SplitKey, keyed_rows, split_rows
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
    """Read, recognise and split the rows of `data.source`; all of them are in memory.

    Raises:
        BadData: they cannot be read or told apart, or a part of them has no rows.
    """
    data = settings.data
    # the sample is read with a count of its own, or its repairs would be counted twice
    layout = layout_of(data, list(islice(rows_of(data, Repairs(data.repair)), SAMPLE_ROWS)), settings.workload)
    repairs, records = Repairs(data.repair), []

    def keys() -> Iterator[SplitKey]:
        for record, key in keyed_rows(data, layout, repairs):
            records.append(record)
            yield key

    split = split_rows(keys(), data)
    parts = {part: [records[place] for place in split.places(part)] for part in PARTS}
    for part, rows in parts.items():
        if not rows:
            raise BadData(
                f"{data.source}: a run needs rows to train on, to watch and to judge by; found none for {part} among "
                f"{len(records)}. Set data.validation and data.test to a share above 0, or to a file."
            )
    notes = repairs.lines()
    if split.left_training or split.left_validation:
        notes.append(
            f"left out, as their text is judged on: {split.left_training} training rows, {split.left_validation} "
            f"validation rows"
        )
    return OwnParts(layout, parts["train"], parts["val"], parts["test"], tuple(notes))
