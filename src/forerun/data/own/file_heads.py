"""Is a file what its name says? Its first bytes show pages, pointers and packed files that were saved under it."""

from pathlib import Path

from forerun.data.own.packed_files import is_packed, plain_name
from forerun.data.own.text_lines import open_bytes
from forerun.errors import BadData

HEAD = 64
"""Bytes looked at."""
HEADS = (
    (b"\x1f\x8b", "gzip, which its name hides", "Rename it, so that it ends in .gz"),
    (b"PK\x03\x04", "a spreadsheet or a zip archive", "Save it as CSV (UTF-8), or unpack it"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet", "Save it as CSV (UTF-8)"),
    (b"%PDF-", "a PDF", "Write its text to a .txt file"),
    (b"PAR1", "Parquet", "Rename it, so that it ends in .parquet"),
    (b"SQLite format 3", "a database", "Export the table as CSV"),
    (b"\xff\xfe\x00\x00", "UTF-32", "Save it as UTF-8"),
    (b"version https://git-lfs", "a pointer of Git LFS in place of the data", "Fetch them: git lfs pull"),
)  # fmt: skip
"""First bytes, what has them, and what to do."""
PAGES = (b"<!doctype html", b"<html")


def require_data(path: Path) -> None:
    """Refuse a file that is another thing than its name says; folders and missing files pass.

    Raises:
        BadData: it is, or it is a pipe or a device, which cannot be read twice.
    """
    if not path.exists() or path.is_dir():
        return
    if not path.is_file():
        raise BadData(f"{path}: must be a file, which is read more than once; found a pipe or a device. Write a file.")
    if is_packed(path):
        if plain_name(path).endswith(".parquet"):
            raise BadData(f"{path}: Parquet is packed inside already; found it packed again. Unpack it.")
        return
    with open_bytes(path) as file:
        head = file.read(HEAD)
    name = path.name.lower()
    for start, what, remedy in HEADS:
        if head.startswith(start) and not (what == "Parquet" and name.endswith(".parquet")):
            raise BadData(f"{path}: must be what its name says; found {what}. {remedy}.")
    if head.lstrip(b"\xef\xbb\xbf \r\n").lower().startswith(PAGES) and not name.endswith((".md", ".txt", ".text")):
        raise BadData(
            f"{path}: must hold rows; found a web page, as servers send where one is to log in. Fetch it anew."
        )
