import pytest

from forerun.data.table_rows import read_table
from forerun.errors import BadData


def test_csv_and_tsv(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"one, two",x\nthree,y\n')
    (tmp_path / "a.tsv").write_text("text\tlabel\none, two\tx\nthree\ty\n")
    expected = [{"text": "one, two", "label": "x"}, {"text": "three", "label": "y"}]
    assert list(read_table(str(tmp_path / "a.csv"), "split")) == expected
    assert list(read_table(str(tmp_path / "a.tsv"), "split")) == expected


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra hub")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [["x"], []]}), tmp_path / "a.parquet")
    assert list(read_table(str(tmp_path / "a.parquet"), "split"))[0] == {"text": "a", "label": ["x"]}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "text,label\n", "at least one row"),
        ("a.csv", "text,label\nonly\n", "as many fields"),
        ("a.xls", "", "neither"),
        ("none.csv", None, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=words):
        read_table(str(tmp_path / name), "split")
