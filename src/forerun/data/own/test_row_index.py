import gzip

import pytest

from forerun.data.own.repairs import Repairs
from forerun.data.own.row_index import RowIndex
from forerun.data.own.rows import read_own_rows
from forerun.errors import NotSupported

CSV = 'text;label\r\n"a\nb";x\r\n\r\nç;y\r\nd;z\r\n'
FILES = {
    "a.csv": CSV.encode(),
    "mark.csv": b"\xef\xbb\xbf" + CSV.encode(),
    "a.jsonl": '{"text": "ä"}\n\n{"text": "b"}\n'.encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_by_number_are_those_that_are_read_in_order(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    index, rows = RowIndex(path), list(read_own_rows(str(path)))
    assert len(index) == len(rows)
    assert [index.row(n) for n in reversed(range(len(index)))] == rows[::-1]
    assert index.offsets.nbytes == 8 * len(rows)
    with pytest.raises(IndexError):
        index.row(len(rows))


def test_rows_that_a_repair_leaves_out_have_no_number(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\nb\nc,y\n")
    repairs = Repairs(["ragged-rows"])
    index = RowIndex(path, repairs)
    assert [index.row(n)["text"] for n in range(len(index))] == ["a", "c"]
    assert repairs.counts == {"ragged-rows": 1}


def test_parquet_is_read_by_row_groups(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"text": f"t{n}"} for n in range(95)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=10)
    index = RowIndex(tmp_path / "a.parquet")
    assert len(index) == 95
    assert [index.row(n) for n in (0, 94, 9, 10, 50, 94)] == [rows[n] for n in (0, 94, 9, 10, 50, 94)]


@pytest.mark.parametrize("name", ["a.csv.gz", "list.json", "a.txt"])
def test_files_that_cannot_be_entered_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress(b"text\na\n") if name.endswith("gz") else b'[{"a": 1}]')
    with pytest.raises(NotSupported, match="neither gzipped"):
        RowIndex(tmp_path / name)
