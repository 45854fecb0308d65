"""Which rows are trained on, which watch training, and which judge it? Decided before anything else looks at them.

1. A part that the data state is kept: a file of its own (`data.validation`, `data.test`), or a column `split`.
2. What is missing is drawn by a hash of the normalised text, so that equal texts share a part and neither the order of
   rows nor new rows move one; with `data.group_by` by a hash of the group; with `data.order_by` the last rows are
   tested on and those before them watch.
3. A row whose text is judged on leaves training, and one that is tested on leaves validation; both are counted.

Seventeen bytes a row are in memory, and the values of `data.order_by`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forerun.data.own.canonical import checked_row
from forerun.data.own.columns import SPLIT_WORDS, Column, Row, is_empty, number_of, value_at
from forerun.data.own.formats import RowLayout
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import CanonicalRow, question_texts
from forerun.data.own.rows import NO_ID, rows_of
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

Part = Literal["train", "val", "test"]
PARTS: tuple[Part, ...] = ("train", "val", "test")
LEFT_OUT, NOT_STATED = 3, 4
"""Codes beside the places in `PARTS`."""
ISO_DATE = re.compile(r"\d{4}(-\d\d){0,2}([T ][\d:.,+Z-]*)?")
DAY, DAYS = 10, 20
"""Letters of a date with its day, and how many different ones make an order of rows."""
HASH_RANGE = 2**64


class UnknownPart(BadData):
    """A column that should say the part of a row says something else."""

    def __init__(self, column: str, word: str, message: str) -> None:
        super().__init__(message)
        self.column, self.word = column, word


@dataclass(frozen=True, slots=True)
class SplitKey:
    """What of a row decides its part."""

    text: str | bytes
    """The normalised text, or its `hash_of`: rows with the same count as equal."""
    group: str | None = None
    order: float | str | None = None
    stated: Part | None = None
    """The part that the data say."""


@dataclass(frozen=True, eq=False)
class HeldOutSplit:
    """The part of each row, by its place."""

    codes: NDArray[np.uint8]
    """Place in `PARTS`, or `LEFT_OUT`."""
    left_training: int
    """Training rows left out because their text is judged on."""
    left_validation: int
    """Validation rows left out because their text is tested on."""

    def places(self, part: Part) -> NDArray[np.intp]:
        """Numbers of a part's rows, in file order."""
        return np.flatnonzero(self.codes == PARTS.index(part))

    def part(self, place: int) -> Part | None:
        """The part of a row; None where it is left out."""
        code = int(self.codes[place])
        return None if code == LEFT_OUT else PARTS[code]

    @property
    def counts(self) -> dict[Part, int]:
        """Rows of each part."""
        return {part: int((self.codes == code).sum()) for code, part in enumerate(PARTS)}

    @property
    def hash(self) -> str:
        """16 hex digits of which row is in which part."""
        return hashlib.sha256(self.codes.tobytes()).hexdigest()[:16]


def split_rows(keys: Iterable[SplitKey], data: DataSettings) -> HeldOutSplit:
    """The part of each row; the same keys and settings give the same parts.

    Raises:
        BadData: a part that `data` asks for would be empty, or nothing is left to train on.
    """
    texts, units, stated, orders = _columns(keys, data)
    codes = stated.copy()
    free = codes == NOT_STATED
    missing: dict[Part, float] = {}
    if isinstance(data.validation, float) and data.validation > 0 and not (stated == PARTS.index("val")).any():
        missing["val"] = data.validation
    if isinstance(data.test, float) and data.test > 0 and not (stated == PARTS.index("test")).any():
        missing["test"] = data.test
    codes[free] = PARTS.index("train")
    pool = codes == PARTS.index("train")
    if orders is not None:
        _by_order(codes, pool, orders, missing)
    else:
        _by_hash(codes, pool, units, missing)
    left_validation = _leave(codes, texts, "val", ("test",))
    left_training = _leave(codes, texts, "train", ("val", "test"))
    split = HeldOutSplit(codes, left_training, left_validation)
    for part, rows in split.counts.items():
        if rows == 0 and (part == "train" or part in missing):
            different = len(np.unique(texts))
            raise BadData(
                f"{data.source}: the part {part} must have rows; found none among {len(codes)} rows of {different} "
                f"different {'text' if different == 1 else 'texts'}; {left_training} left training because they are "
                f"judged on. Give more data, other columns in data.fields, or other shares in data.validation and "
                f"data.test."
            )
    return split


def keyed_rows(data: DataSettings, layout: RowLayout, repairs: Repairs) -> Iterator[tuple[CanonicalRow, SplitKey]]:
    """Every good row with its key: those of `data.source`, then of the files for validation and test.

    Raises:
        BadData: a row that no repair is for, or a split or order that cannot be read.
    """
    for source, part in own_sources(data):
        for number, row in enumerate(rows_of(data, repairs, source), start=1):
            where = f"{source}, row {number}"
            record = checked_row(row, layout, where, repairs)
            if record is not None:
                yield record, split_key(row, record, data, where, part)


def split_key(row: Row, record: CanonicalRow, data: DataSettings, where: str, stated: Part | None = None) -> SplitKey:
    """What of a row decides its part; `stated` is that of a file of its own.

    Raises:
        BadData: the columns of `data.group_by` or `data.order_by` are not there, or the split is no part.
    """
    group = order = None
    if data.group_by is not None:
        group = _cell(row, data.group_by, "group_by", where)
    if data.order_by is not None:
        order = _order(_cell(row, data.order_by, "order_by", where), data.order_by, where)
    text = normalised("\x1f".join(question_texts(record)))
    return SplitKey(text, None if group is None else str(group), order, stated or stated_part(row, data, where))


def stated_part(row: Row, data: DataSettings, where: str) -> Part | None:
    """The part in a row's column `split`, or in that of `data.fields.split` (`none`: no column says it).

    Raises:
        UnknownPart: a word for no part.
    """
    column = data.fields.get("split", "split")
    value = None if column == NO_ID else row.get(column)
    if is_empty(value):
        return None
    part = SPLIT_WORDS.get(str(value).strip().lower())
    if part is None:
        raise UnknownPart(
            column, str(value),
            f"{where}: the column {column!r} says train, validation or test; found {value!r}. Correct it, or set "
            f"data.fields: {{split: {NO_ID}}} if it is no split.",
        )  # fmt: skip
    return part  # type: ignore[return-value]


def dated_column(rows: Sequence[Row]) -> str:
    """The first column whose values are dates that `data.order_by` reads, many different ones; empty without one."""
    for name in rows[0] if rows else ():
        dates = [_date(row.get(name)) for row in rows]
        if all(len(date) >= DAY and ISO_DATE.fullmatch(date) for date in dates) and len(set(dates)) >= DAYS:
            return name
    return ""


def day_first_column(columns: Iterable[Column], rows: Sequence[Row]) -> str:
    """The first column of many different dates that do not begin with the year; empty without one."""
    for column in columns:
        first = next((str(value) for row in rows if (value := row.get(column.name)) is not None), "")
        if column.are_dates and column.distinct >= DAYS and not first.strip()[:4].isdecimal():
            return column.name
    return ""


def _date(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value).strip()


def normalised(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.lower().split())


def own_sources(data: DataSettings) -> Iterator[tuple[str | None, Part | None]]:
    """The files of `data`, and the part that all rows of one are in."""
    yield data.source, None
    if isinstance(data.validation, str):
        yield data.validation, "val"
    if isinstance(data.test, str):
        yield data.test, "test"


def _columns(
    keys: Iterable[SplitKey], data: DataSettings
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8], Sequence[Any] | None]:
    """Hashes of texts and of what is drawn, stated parts, and the values to order by."""
    texts, units, stated = bytearray(), bytearray(), bytearray()
    orders: list[float | str] = []
    for key in keys:
        text = key.text if isinstance(key.text, bytes) else hash_of(key.text)
        texts += text
        units += text if key.group is None else hash_of(f"group {key.group}")
        stated.append(NOT_STATED if key.stated is None else PARTS.index(key.stated))
        if key.order is not None:
            orders.append(key.order)
    if len({type(order) for order in orders}) > 1:
        raise BadData(f"data.order_by: {data.order_by!r} holds numbers or dates; found both. Write them alike.")
    return (
        np.frombuffer(bytes(texts), dtype=">u8").astype(np.uint64),
        np.frombuffer(bytes(units), dtype=">u8").astype(np.uint64),
        np.frombuffer(bytes(stated), dtype=np.uint8),
        orders if data.order_by is not None else None,
    )


def _by_hash(
    codes: NDArray[np.uint8], pool: NDArray[np.bool_], units: NDArray[np.uint64], missing: dict[Part, float]
) -> None:
    """Draw the missing parts from the pool, whole units at a time."""
    least = 0
    for part, share in sorted(missing.items()):
        first, last = np.uint64(least), np.uint64(min(HASH_RANGE - 1, least + int(share * HASH_RANGE)))
        picked = pool & (units >= first) & (units < last)
        candidates = units[pool & (codes == PARTS.index("train"))]
        if not picked.any() and len(np.unique(candidates)) > len(missing):
            picked = pool & (units == candidates.max())  # of few rows: the one whose hash is the largest
        codes[picked] = PARTS.index(part)
        pool = pool & ~picked
        least = int(last)


def _by_order(
    codes: NDArray[np.uint8], pool: NDArray[np.bool_], orders: Sequence[Any], missing: dict[Part, float]
) -> None:
    """The last rows of the pool to `test`, those before them to `val`; rows of one value are never torn apart."""
    places = [int(place) for place in np.flatnonzero(pool)]
    rows = len(places)
    for part in ("test", "val"):
        if part in missing and places:
            ranked = sorted((orders[place] for place in places), reverse=True)
            first = ranked[max(0, min(len(ranked), round(missing[part] * rows)) - 1)]
            codes[[place for place in places if orders[place] >= first]] = PARTS.index(part)
            places = [place for place in places if orders[place] < first]


def _leave(codes: NDArray[np.uint8], texts: NDArray[np.uint64], part: Part, judged: tuple[Part, ...]) -> int:
    """Take the rows of `part` out whose text is in a part of `judged`; their number."""
    there = np.isin(codes, [PARTS.index(other) for other in judged])
    repeated = (codes == PARTS.index(part)) & np.isin(texts, texts[there])
    codes[repeated] = LEFT_OUT
    return int(repeated.sum())


def _cell(row: Row, column: str, setting: str, where: str) -> Any:
    value = value_at(row, column)
    if is_empty(value):
        raise BadData(
            f"{where}: data.{setting} needs a value in the column {column!r}; found none among {', '.join(row)}. Fill "
            f"it in, or name another column."
        )
    return value


def _order(value: Any, column: str, where: str) -> float | str:
    number = number_of(value)
    if number is not None:
        return number
    text = _date(value)
    if not ISO_DATE.fullmatch(text):
        raise BadData(
            f"{where}: data.order_by needs numbers, or dates that begin with the year (2024-12-31); found {text!r} in "
            f"{column!r}. Write them so."
        )
    return text


def hash_of(text: str) -> bytes:
    """Eight bytes that tell texts apart."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
