import json

import pytest

from forerun.data.own.repairs import Repairs
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


RECORDS = [{"text": f"words {n}", "label": "ab"[n % 2]} for n in range(3)]


@pytest.mark.parametrize("keys", [("0", "1", "2"), ("a1", "b2", "c3")])
def test_records_by_what_names_them_are_rows_and_so_are_columns_by_index(read, keys):
    records = dict(zip(keys, RECORDS, strict=True))
    assert read(records) == [{"id": key, **record} for key, record in records.items()]
    assert read({name: {key: record[name] for key, record in records.items()} for name in RECORDS[0]}) == RECORDS


def test_a_square_of_names_is_refused_as_nothing_says_which_are_columns(read):
    with pytest.raises(BadData, match="2 values under each of a, b, which can be rows or columns"):
        read({"a": RECORDS[0], "b": RECORDS[1]})


@pytest.mark.parametrize(
    ("names", "data"), [(["text", "label"], [["one", "a"], ["two"]]), (["text", "text"], [["one", "a"]] * 2)]
)
def test_values_that_do_not_go_with_their_names_are_refused(read, names, data):
    with pytest.raises(BadData, match="a list of 2 lists under 'data'"):
        read({"columns": names, "data": data})


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


def test_names_of_columns_as_a_row_are_left_out_and_counted(tmp_path):
    names = {"text": "text", "label": "label"}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (RECORDS[0], names, *RECORDS[1:])))
    with pytest.raises(
        BadData, match=r"row 2: a row holds values; found the names of its columns \(text, label\) again"
    ):
        list(read_own_rows(str(tmp_path / "a.jsonl")))
    repairs = Repairs(("ragged-rows",))
    assert list(read_own_rows(str(tmp_path / "a.jsonl"), repairs=repairs)) == RECORDS
    assert repairs.counts == {"ragged-rows": 1}
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "text", "split": "train"}))
    assert len(list(read_own_rows(str(tmp_path / "b.jsonl")))) == 1
