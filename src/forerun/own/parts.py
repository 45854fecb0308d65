"""Rows of own data in one form, in three parts: training, validation, test; on disk, and read by number."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from forerun.data.own.formats import SAMPLE_ROWS, RowLayout, layout_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import rows_of
from forerun.data.own.splits import PARTS, HeldOutSplit, SplitKey, keyed_rows, split_rows
from forerun.data.own.stored_rows import RowWriter, StoredRows
from forerun.data.own.tool_columns import unread_tools
from forerun.errors import BadData
from forerun.models.first_weights import is_from_scratch
from forerun.own.stores import CODES, Facts, row_entry
from forerun.settings.evaluation import EvaluationSettings
from forerun.settings.schema import Settings

LEARNING_BYTES = 2**27
"""Most bytes of rows that a tokenizer is learned from."""
SCORED_ROWS, SCORED_BYTES, DRAW_SEED = 20_000, 2**23, 0
"""Rows of a held-out part, and bytes of them, that are scored unless the settings say a number; of so many rows a share
is known to 0.7 points."""


@dataclass(frozen=True)
class OwnParts:
    """Canonical rows of the three parts, with how they were read."""

    layout: RowLayout
    train: StoredRows
    validation: StoredRows
    test: StoredRows
    notes: tuple[str, ...] = ()
    """Sentences on rows that were left out or mended."""
    has_chats: bool = False
    """Whether rows are made of messages; where one is, all go through the chat template."""

    @property
    def format(self) -> str:
        """What a row is."""
        return self.layout.format

    @property
    def fields(self) -> Mapping[str, str]:
        """Column of each part of a row."""
        return self.layout.fields

    @property
    def learning_rows(self) -> StoredRows:
        """Training rows that a tokenizer is learned from: all, or every n-th of more than `LEARNING_BYTES`."""
        return self.train[:: learning_stride(self.train)]

    def split(self, evaluation: EvaluationSettings) -> dict[str, StoredRows]:
        """Rows by part: all to train on, and those of the held-out parts that are scored."""
        return {
            "train": self.train,
            "validation": scored_rows(self.validation, evaluation.examples),
            "test": scored_rows(self.test, evaluation.test_examples),
        }


def scored_rows(rows: StoredRows, most: int) -> StoredRows:
    """At most so many rows, drawn by chance, the same ones each time: the first ones of a file may all have one label.

    Where `most` is 0: `SCORED_ROWS`, and `SCORED_BYTES` of them.
    """
    size = int(rows.size_bytes.sum())
    most = most or min(SCORED_ROWS, max(1, len(rows) * SCORED_BYTES // max(1, size)))
    if most >= len(rows):
        return rows
    places = np.random.default_rng(DRAW_SEED).choice(len(rows), size=most, replace=False)
    return rows.at(rows.places[np.sort(places)])


def learning_stride(rows: StoredRows) -> int:
    """1, or n where a tokenizer is learned from every n-th row."""
    return max(1, math.ceil(int(rows.size_bytes.sum()) / LEARNING_BYTES))


def read_parts(settings: Settings) -> OwnParts:
    """Read, recognise and split the rows of `data.source`, unless an earlier process has; 25 bytes a row are in memory.

    Raises:
        BadData: they cannot be read or told apart, or a part of them has no rows.
        FilesNotWritten: there is no room for them on the disk.
    """
    entry = row_entry(settings, lambda folder: _write_parts(settings, folder))
    facts = entry.facts
    split = HeldOutSplit(np.load(entry.folder / CODES), facts["left_training"], facts["left_validation"])
    everyone = StoredRows(entry.folder, np.arange(len(split.codes)), entry)
    train, validation, test = (everyone.at(split.places(part)) for part in PARTS)
    # the entry may be that of a file of the same content elsewhere
    notes = [note.replace(facts["source"], settings.data.source or "") for note in facts["notes"]]
    if split.left_training or split.left_validation:
        notes.append(
            f"left out, as their text is judged on: {split.left_training} training rows, {split.left_validation} "
            f"validation rows"
        )
    stride = learning_stride(train)
    if stride > 1 and is_from_scratch(settings):
        notes.append(f"tokenizer, where it is learned here: from one training row in {stride}")
    return OwnParts(RowLayout(**facts["layout"]), train, validation, test, tuple(notes), facts["has_chats"])


def _write_parts(settings: Settings, folder: Path) -> tuple[HeldOutSplit, Facts]:
    """Write all rows into `folder`; the part of each, how they are read, and what was mended."""
    data = settings.data
    # the sample is read with a count of its own, or its repairs would be counted twice
    sample = list(islice(rows_of(data, Repairs(data.repair)), SAMPLE_ROWS))
    layout = layout_of(data, sample, settings.workload)
    repairs = Repairs(data.repair)

    def keys(writer: RowWriter) -> Iterator[SplitKey]:
        for record, key in keyed_rows(data, layout, repairs):
            writer.add(record)
            yield key

    with RowWriter(folder) as writer:
        split = split_rows(keys(writer), data)
    for part, count in split.counts.items():
        if not count:
            raise BadData(
                f"{data.source}: a run needs rows to train on, to watch and to judge by; found none for {part} among "
                f"{len(split.codes)}. Set data.validation and data.test to a share above 0, or to a file."
            )
    notes = [*repairs.lines(), *(f"tools: {text}" for text in [unread_tools(layout, sample)] if text)]
    return split, {"layout": asdict(layout), "notes": notes, "has_chats": writer.has_chats}
