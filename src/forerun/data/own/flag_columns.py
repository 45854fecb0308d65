"""Several labels of a row as columns of yes and no: `toxic, obscene, threat` with 0 or 1 in each.

`data.fields: {label: toxic + obscene + threat}` makes one column of that name of them: the names that apply.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forerun.data.own.columns import NO, YES, Row
from forerun.errors import BadData

BETWEEN = " + "


def with_flags(rows: Iterable[Row], column: str | None, source: str) -> Iterator[Row]:
    """Rows with the column `a + b`, the list of those of `a` and `b` that say yes; rows as they are for other names.

    Raises:
        BadData: a column is missing, or says neither.
    """
    names = [name.strip() for name in (column or "").split(BETWEEN)]
    for number, row in enumerate(rows, start=1):
        if len(names) < 2 or column in row or not any(name in row for name in names):
            yield row  # files to be answered may lack labels
        else:
            yield {**row, str(column): [name for name in names if _says_yes(row, name, f"{source}, row {number}")]}


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
