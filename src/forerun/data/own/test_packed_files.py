import bz2
import io
import lzma
import zipfile

import pytest

from forerun.data.own.rows import read_own_rows, row_meaning
from forerun.errors import BadData

TABLE = b'text,label\n"one\nline",a\ntwo,b\n'
ROWS = [{"text": "one\nline", "label": "a"}, {"text": "two", "label": "b"}]
LINES = b'{"text": "one\\nline", "label": "a"}\n{"text": "two", "label": "b"}\n'


def archive(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name.replace("_dot_", ".").replace("_in_", "/"), content)
    return packed.getvalue()


def zstandard(content):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.Codec("zstd").compress(content).to_pybytes()


PACKINGS = {
    "table.csv.zip": lambda: archive(table_dot_csv=TABLE),
    "archive.zip": lambda: archive(data_in_table_dot_csv=TABLE, __MACOSX_in_x=b"x", _dot_DS_Store=b"x"),
    "lines.zip": lambda: archive(lines_dot_jsonl=LINES),
    "table.csv.bz2": lambda: bz2.compress(TABLE),
    "lines.jsonl.xz": lambda: lzma.compress(LINES),
    "lines.jsonl.zst": lambda: zstandard(LINES),
    "table.csv.zst": lambda: zstandard(TABLE),
}


@pytest.mark.parametrize("name", PACKINGS)
def test_packed_files_are_read_as_what_is_inside(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKINGS[name]())
    assert list(read_own_rows(str(path))) == ROWS
    assert row_meaning(str(path)) == ("a JSON object" if "lines" in name else "a row of the table")


def test_packed_tables_of_a_folder_say_their_split(tmp_path):
    (tmp_path / "train.csv.zip").write_bytes(archive(train_dot_csv=TABLE))
    (tmp_path / "test.csv.bz2").write_bytes(bz2.compress(TABLE))
    assert [row["split"] for row in read_own_rows(str(tmp_path))] == ["test", "test", "train", "train"]


REFUSED = {
    "several": ("a.zip", lambda: archive(a_dot_csv=TABLE, b_dot_csv=TABLE), "found 2: a.csv, b.csv. Unpack it"),
    "none": ("a.csv.zip", archive, "an archive holds one file; found 0. Unpack it"),
    "no archive": ("a.csv.zip", lambda: TABLE, "File is not a zip file. Fetch the file anew"),
    "torn bzip2": ("a.csv.bz2", lambda: bz2.compress(TABLE * 99)[:-30], "Fetch the file anew"),
    "torn xz": ("a.csv.xz", lambda: lzma.compress(TABLE * 99)[:-40], "Fetch the file anew"),
    "no Zstandard": ("a.csv.zst", lambda: TABLE, "Fetch the file anew"),
    "packed twice": ("a.parquet.gz", lambda: b"\x1f\x8b", "Parquet is packed inside already"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_unpacked_is_refused_in_words(tmp_path, kind):
    if kind == "no Zstandard":
        pytest.importorskip("pyarrow")
    name, make, words = REFUSED[kind]
    path = tmp_path / name
    path.write_bytes(make())
    with pytest.raises(BadData, match=words):
        list(read_own_rows(str(path)))


def test_an_archive_with_a_password_is_refused(tmp_path):
    packed = bytearray(archive(a_dot_csv=TABLE))
    packed[packed.rindex(b"PK\x01\x02") + 8] |= 1  # the flag of the entry in the directory
    (tmp_path / "a.csv.zip").write_bytes(packed)
    with pytest.raises(BadData, match="without a password"):
        list(read_own_rows(str(tmp_path / "a.csv.zip")))
