"""Canonical rows on disk: a line of JSON each, and where each line ends; memory is 8 bytes a row.

A list that begins with the kind of row, `["TextRow", "some text"]`: unlike the source, which may be gzipped, one JSON
list or a folder, it can be entered anywhere, and repairs are done.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from forerun.data.flat_file import FlatFile, FlatWriter
from forerun.data.own.row_kinds import (
    AnsweredRow,
    CanonicalRow,
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

ROWS, ENDS = "rows.npy", "ends.npy"


class RowWriter(ExitStack):
    """Writes rows into a folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.has_chats = False
        """Whether a row so far is made of messages, which a chat template writes."""
        self._lines = self.enter_context(FlatWriter(folder / ROWS, np.uint8))
        self._ends = self.enter_context(FlatWriter(folder / ENDS, np.int64))

    def add(self, row: CanonicalRow) -> None:
        """Append a row."""
        self.has_chats |= isinstance(row, AnsweredRow) and not row.is_plain
        self._lines.add(np.frombuffer(packed(row), dtype=np.uint8))
        self._ends.add(self._lines.length)


def packed(row: CanonicalRow) -> bytes:
    """A row as a line of JSON."""
    fields = [type(row).__name__, *(getattr(row, name) for name in row.__slots__)]
    # half a surrogate pair, which JSON files may hold, has no UTF-8
    return json.dumps(fields, ensure_ascii=False, default=_fields).encode(errors="surrogatepass") + b"\n"


def unpacked(line: bytes) -> CanonicalRow:
    """The row of a line."""
    kind, *fields = json.loads(line.decode(errors="surrogatepass"))
    return READERS[kind](*fields)


class StoredRows(Sequence[Any]):
    """Some rows of a folder that a `RowWriter` filled, in the order of their places."""

    def __init__(self, folder: Path, places: NDArray[np.int64], owner: object = None) -> None:
        self._folder, self._owner, self.places = folder, owner, places  # the owner keeps the folder from being removed
        self._lines, self._ends = FlatFile(folder / ROWS), np.load(folder / ENDS)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "StoredRows": ...
    def __getitem__(self, index: int | slice) -> "Any | StoredRows":
        if isinstance(index, slice):
            return self.at(self.places[index])
        place = int(self.places[index])
        return unpacked(self._lines.piece(int(self._ends[place - 1]) if place else 0, int(self._ends[place])).tobytes())

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def at(self, places: NDArray[np.int64]) -> "StoredRows":
        """Rows of other places; the ends of all rows are shared."""
        rows = copy.copy(self)
        rows.places = places
        return rows

    @property
    def identity(self) -> list[str]:
        """What tells these rows from all others: the name of their folder, and a hash of their places."""
        return [self._folder.name, hashlib.sha256(self.places.tobytes()).hexdigest()]

    @property
    def size_bytes(self) -> NDArray[np.int64]:
        """Bytes of each row as it is kept."""
        return np.diff(self._ends, prepend=0)[self.places]


def _fields(turn: Any) -> list[str]:
    assert isinstance(turn, Turn)
    return [turn.role, turn.content, *([turn.more] if turn.more else [])]


def _turns(fields: Iterable[Sequence[str]]) -> tuple[Turn, ...]:
    return tuple(Turn(*turn) for turn in fields)


READERS: dict[str, Callable[..., CanonicalRow]] = {
    "TextRow": TextRow,
    "LabelledRow": lambda text, pair, labels: LabelledRow(text, pair, tuple(labels)),
    "TaggedRow": lambda words, tags: TaggedRow(tuple(words), tuple(tags)),
    "ChatRow": lambda messages, is_plain, tools: ChatRow(_turns(messages), is_plain, tools),
    "TranslationRow": TranslationRow,
    "PreferenceRow": lambda prompt, better, worse, is_plain, tools: PreferenceRow(
        _turns(prompt), _turns(better), _turns(worse), is_plain, tools
    ),
    "UnpairedRow": lambda prompt, answer, is_desirable, is_plain, tools: UnpairedRow(
        _turns(prompt), _turns(answer), is_desirable, is_plain, tools
    ),
    "PairRow": PairRow,
    "TripletRow": TripletRow,
}
"""What makes a row of the fields of a line."""
