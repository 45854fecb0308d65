import json

import pytest

from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData

ROWS = [{"text": "one", "label": "a"}, {"text": "two", "label": None}]
COLUMNS = {
    "values by number": {name: {str(n): row[name] for n, row in enumerate(ROWS)} for name in ("text", "label")},
    "lists": {name: [row[name] for row in ROWS] for name in ("text", "label")},
    "names apart": {"columns": ["text", "label"], "index": [0, 1], "data": [list(row.values()) for row in ROWS]},
}


@pytest.fixture
def read(tmp_path):
    def read(content):
        (tmp_path / "a.json").write_text(json.dumps(content))
        return list(read_own_rows(str(tmp_path / "a.json")))

    return read


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_as_pandas_writes_them_are_rows(read, kind):
    assert read(COLUMNS[kind]) == ROWS


def test_lists_named_by_parts_are_those(read):
    rows = read({"train": ROWS, "dev": ROWS[:1], "test": ROWS[1:]})
    assert [row["split"] for row in rows] == ["train", "train", "dev", "test"]
    assert [row["text"] for row in rows] == ["one", "two", "one", "two"]


def test_one_object_with_lists_of_its_own_is_one_row(read):
    row = {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}
    assert read(row) == [row]
    row = {"question": {"a": 1, "b": 2}, "answer": {"a": 3, "c": 4}}
    assert read(row) == [row]


def test_rows_without_names_are_refused_with_what_would_do(read):
    with pytest.raises(BadData, match=r"row 1: each row is a JSON object; found list \['one', 'a'\]\. Give its values"):
        read([["one", "a"], ["two", "b"]])
