"""Rows of somebody's own data, one after the other: what the file says, in mappings from column to value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forerun.data.table_rows import read_table
from forerun.settings.schema import Repair


def read_own_rows(source: str, repair: Sequence[Repair] = ()) -> Iterator[Mapping[str, Any]]:
    """Rows of `source` in file order.

    Raises:
        BadData: no such file or data set, or rows that no repair of `repair` is for.
        MissingExtra: a package that reads it is not installed.
    """
    yield from read_table(source, "split")
