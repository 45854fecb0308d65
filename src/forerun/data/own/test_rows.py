import pytest

from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData


def test_rows_come_in_file_order(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,x\ntwo,y\n")
    assert [row["text"] for row in read_own_rows(str(tmp_path / "a.csv"))] == ["one", "two"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadData, match="gone"):
        list(read_own_rows(str(tmp_path / "gone.csv")))
