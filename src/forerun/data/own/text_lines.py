"""Lines of a text file, plain or packed, one at a time with their places; memory is that of the longest line.

UTF-8, with or without its mark, and UTF-16 with one. Bytes that are neither are an error, or, allowed by
`data.repair: [encoding]`, read as Windows-1252. A line of more than `LONGEST_LINE` bytes is an error: such files are
no lines of text.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

from forerun.data.own.packed_files import BROKEN, is_packed, open_packed
from forerun.data.own.repairs import Repairs
from forerun.errors import BadData

LONGEST_LINE = 64 * 2**20
"""Bytes."""
PIECE = 2**18
"""Bytes read at once where lines do not matter."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _as_windows_1252(error: UnicodeError) -> tuple[str, int]:
    """Handler of codecs: the bytes that are wrong, in the code page of Windows; its five holes become U+FFFD."""
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


codecs.register_error("forerun-windows-1252", _as_windows_1252)


class TextLines:
    """Iterates over the lines of `path`, with their ends, from byte `offset` on."""

    def __init__(self, path: Path, repairs: Repairs, offset: int = 0) -> None:
        self.path, self._repairs, self._start = path, repairs, offset
        self.number = 0
        """Of the line that came last, from 1."""
        self.position = offset
        """Byte at which the next line begins."""

    def __iter__(self) -> Iterator[str]:
        with open_bytes(self.path) as file:
            try:
                yield from self._utf_16(file) if self._start == 0 and is_utf_16(self.path) else self._utf_8(file)
            except BROKEN as error:
                raise BadData(f"{self.path}, line {self.number + 1}: {error}. Fetch the file anew.") from error

    def _utf_8(self, file: IO[bytes]) -> Iterator[str]:
        if self._start:
            file.seek(self._start)
        while line := file.readline(LONGEST_LINE + 1):
            self.number += 1
            if self.number == 1 and b"\r" in line and not line.endswith(b"\n"):
                raise BadData(
                    f"{self.path}: lines end in LF or CR LF; found CR alone, as old Mac programs end them. Write it "
                    f"anew: tr '\\r' '\\n' < {self.path.name} > new-{self.path.name}"
                )
            if len(line) > LONGEST_LINE:
                raise BadData(
                    f"{self.path}, line {self.number}: lines of at most {LONGEST_LINE // 2**20} MiB; found a longer "
                    f"one. Break it up, or give the data as Parquet."
                )
            text = decoded(line, self._repairs, f"{self.path}, line {self.number}")
            if self.position == 0:
                text = text.removeprefix("\ufeff")
            self.position += len(line)
            yield text

    def _utf_16(self, file: IO[bytes]) -> Iterator[str]:
        for line in codecs.getreader("utf-16")(file):
            self.number += 1
            yield line.replace("\r\n", "\n")


def text_pieces(path: Path, repairs: Repairs) -> Iterator[str]:
    """The text of a file in pieces of about a MiB, for files whose lines mean nothing.

    Raises:
        BadData: as `TextLines`.
    """
    if is_utf_16(path):
        yield from TextLines(path, repairs)
        return
    position, rest = 0, b""
    with open_bytes(path) as file:
        try:
            while piece := file.read(PIECE):
                piece = rest + piece
                rest = _unfinished(piece)
                text = decoded(piece[: len(piece) - len(rest)], repairs, f"{path}, after byte {position}")
                yield text.removeprefix("\ufeff") if position == 0 else text
                position += len(piece) - len(rest)
        except BROKEN as error:
            raise BadData(f"{path}, after byte {position}: {error}. Fetch the file anew.") from error
        if rest:
            yield decoded(rest, repairs, f"{path}, after byte {position}")


def decoded(raw: bytes, repairs: Repairs, where: str) -> str:
    """Bytes as text; `where` names the place of a fault.

    Raises:
        BadData: no UTF-8 and no repair allowed, or bytes of a file that holds no text.
    """
    if b"\0" in raw:
        raise BadData(
            f"{where}: must be text; found a zero byte, as binary files have, and UTF-16 "
            f"without its mark. Save it as UTF-8 text."
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = raw[error.start : error.end].hex(" ")
        repairs.allow("encoding", where, f"must be UTF-8; found the bytes {wrong} at {error.start}.")
        return raw.decode("utf-8", errors="forerun-windows-1252")


def is_utf_16(path: Path) -> bool:
    """Whether its first bytes are the mark of UTF-16."""
    with open_bytes(path) as file:
        try:
            return file.read(2) in UTF_16
        except BROKEN as error:
            raise BadData(f"{path}: {error}. Fetch the file anew.") from error


def open_bytes(path: Path) -> Any:
    """The file, unpacked where it is packed.

    Raises:
        BadData: it cannot be read.
    """
    try:
        return open_packed(path) if is_packed(path) else path.open("rb", buffering=PIECE)
    except BadZipFile as error:
        raise BadData(f"{path}: {error}. Fetch the file anew.") from error
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error


def _unfinished(piece: bytes) -> bytes:
    """The bytes at the end of a piece that begin a letter and do not end it."""
    for length in range(1, min(4, len(piece)) + 1):
        first = piece[-length]
        if first >= 0xC0:
            size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return piece[-length:] if length < size else b""
        if first < 0x80:
            return b""
    return b""
