"""Files that are packed, read as they unpack: gzip, bzip2, xz, Zstandard, and zip archives of one file.

What a file is, its name without the ending of the packing says; of an archive, the name of the file inside.
"""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

from forerun.errors import BadData, MissingExtra

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""What is raised where a packed file is torn or is none."""
NOT_DATA = ("__MACOSX", ".")
"""Begins of names of what programs add to an archive."""
ENCRYPTED = 0x1
"""Flag of an entry (APPNOTE.TXT 6.3.10, 4.4.4)."""


def is_packed(path: Path) -> bool:
    """Whether its name says so."""
    return path.name.lower().endswith(PACKED)


def plain_name(path: Path) -> str:
    """The name in lower case, without packing; of an archive with one file that file's."""
    name = path.name.lower()
    if name.endswith(".zip") and path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive)
        if len(entries) == 1:
            return Path(entries[0].filename).name.lower()
    ending = next((ending for ending in PACKED if name.endswith(ending)), "")
    return name.removesuffix(ending)


def open_packed(path: Path) -> Any:
    """The bytes of a packed file.

    Raises:
        BadData: an archive with several files, none, or one with a password.
        MissingExtra: Zstandard, and pyarrow is not installed.
        OSError, BadZipFile: it cannot be read, or is none.
    """
    ending = path.name.lower().rpartition(".")[2]
    if ending == "zip":
        return _open_archive(path)
    if ending == "zst":
        return _open_zstandard(path)
    return {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[ending](path, "rb")


def _open_archive(path: Path) -> Any:
    archive = zipfile.ZipFile(path)
    entries = _entries(archive)
    if len(entries) != 1:
        names = ", ".join(entry.filename for entry in entries[:3]) + (", …" if len(entries) > 3 else "")
        raise BadData(
            f"{path}: an archive holds one file; found {len(entries)}{': ' if names else ''}{names}. Unpack it, and "
            f"name the file or folder."
        )
    if entries[0].flag_bits & ENCRYPTED:
        raise BadData(f"{path}: an archive without a password; found one with. Unpack it.")
    return archive.open(entries[0])


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    entries = (entry for entry in archive.infolist() if not entry.is_dir())
    return [e for e in entries if not any(part.startswith(NOT_DATA) for part in Path(e.filename).parts)]


def _open_zstandard(path: Path) -> Any:
    try:
        import pyarrow  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(
            f"{path} is packed with Zstandard, which needs the package pyarrow. Install it with "
            f"pip install 'forerun[hub]', or pack the file as .gz."
        ) from error
    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
