"""Rows on disk come back as they were, by number and in order."""

import json

import numpy as np
import pytest

from forerun.data.own.row_kinds import (
    ChatRow,
    LabelledRow,
    PairRow,
    PreferenceRow,
    TaggedRow,
    TextRow,
    TranslationRow,
    TripletRow,
    Turn,
    UnpairedRow,
)
from forerun.data.own.stored_rows import ROWS, RowWriter, StoredRows, packed, unpacked

TURNS = (Turn("user", "a\nb"), Turn("assistant", "c"))
RECORDS = [
    TextRow(""), TextRow("zwei\u2028Zeilen\n\x00 \ud83d"), LabelledRow("a", None, ("x",)),
    LabelledRow("a", "b", ()), LabelledRow("a", None, ("1.5",)), TaggedRow(("a", "b"), ("O", "B-X")), ChatRow(TURNS),
    ChatRow(TURNS[:1], is_plain=True), TranslationRow("a", "b"), PreferenceRow((), TURNS, TURNS[1:], True),
    UnpairedRow(TURNS[:1], TURNS[1:], False), UnpairedRow(TURNS, TURNS[1:], True, True, "[]"),
    PairRow("a", "b"), PairRow("a", "b", 0.1), TripletRow("a", "b", "c"),
]  # fmt: skip


def write_rows(folder, rows):
    with RowWriter(folder) as writer:
        for row in rows:
            writer.add(row)


@pytest.mark.parametrize("record", RECORDS, ids=[type(record).__name__ for record in RECORDS])
def test_every_kind_of_row_is_read_as_it_was_written(record):
    assert unpacked(packed(record)) == record


def test_rows_are_read_by_number_in_the_order_of_their_places(tmp_path):
    write_rows(tmp_path, iter(RECORDS))
    rows = StoredRows(tmp_path, np.asarray([4, 0, 12]))
    assert list(rows) == [RECORDS[4], RECORDS[0], RECORDS[12]]
    assert rows[-1] == RECORDS[12]
    assert list(rows[1:]) == [RECORDS[0], RECORDS[12]]
    assert rows.size_bytes.tolist() == [len(packed(RECORDS[place])) for place in (4, 0, 12)]
    with pytest.raises(IndexError):
        rows[3]


def test_lines_are_json_that_anything_reads(tmp_path):
    write_rows(tmp_path, [TextRow("a"), TextRow("ü")])
    lines = np.load(tmp_path / ROWS).tobytes().decode().splitlines()
    assert [json.loads(line) for line in lines] == [["TextRow", "a"], ["TextRow", "ü"]]
