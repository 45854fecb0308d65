"""Several labels of a row as columns of yes and no: `toxic, obscene, threat` with 0 or 1 in each.

`data.fields: {label: toxic + obscene + threat}` makes one column of that name of them: the names that apply.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from forerun.data.own.columns import NO, YES, Row, says_nothing
from forerun.data.own.repairs import Repairs
from forerun.errors import BadData

BETWEEN = " + "


def with_flags(rows: Iterable[Row], column: str | None, source: str, repairs: Repairs | None = None) -> Iterator[Row]:
    """Rows with the column `a + b`, the list of those of `a` and `b` that say yes; rows as they are for other names.

    Where a cell is empty, the column is None (no label), or the cell says no, as `repairs` allow.

    Raises:
        BadData: a column is missing, says neither, or is empty and no repair is allowed.
    """
    repairs = repairs or Repairs()
    names = [name.strip() for name in (column or "").split(BETWEEN)]
    for number, row in enumerate(rows, start=1):
        if len(names) < 2 or column in row or not any(name in row for name in names):
            yield row  # files to be answered may lack labels
        else:
            yield {**row, str(column): _flags(row, names, f"{source}, row {number}", repairs)}


def _flags(row: Row, names: Sequence[str], where: str, repairs: Repairs) -> list[str] | None:
    """Names that apply; None where a cell is empty and that says nothing."""
    empty = [name for name in names if name in row and says_nothing(row[name])]
    if empty:
        rule = f"the column {empty[0]!r} of data.fields.label says 1 or 0; found nothing."
        if not repairs.is_none_meant(where, rule):
            return None
    return [name for name in names if name not in empty and _says_yes(row, name, where)]


def _says_yes(row: Mapping[str, Any], name: str, where: str) -> bool:
    word = _word(row.get(name))
    if word not in (*YES, *NO):
        value = f"{row[name]!r}" if name in row else f"no such column among {', '.join(row)}"
        raise BadData(
            f"{where}: the column {name!r} of data.fields.label says 1 or 0 (true or false, yes or no); found {value}. "
            f"Correct it, or leave the column out of data.fields.label."
        )
    return word in YES


def _word(value: Any) -> str:
    return str(value).strip().lower()
