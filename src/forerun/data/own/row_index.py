"""Any row of a file by its number, without the file in memory: eight bytes a row.

JSON lines and CSV are parsed once, and the byte at which each good row begins is written down; Parquet has row groups,
of which the last ones read are in memory. Gzipped files and JSON lists cannot be entered in the middle.
"""

import json
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from forerun.data.own.columnar import parquet_file
from forerun.data.own.columns import Row
from forerun.data.own.delimited import delimited_rows, delimiter_of, header_of, row_at
from forerun.data.own.json_stream import is_json_list, json_line_rows
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import TextLines, is_gzipped, is_utf_16
from forerun.errors import NotSupported

GROUPS = 4
"""Row groups of a Parquet file that are in memory at once."""


class RowIndex:
    """The rows of a file, by number.

    Raises:
        NotSupported: a file that cannot be entered in the middle.
        BadData: as reading it.
    """

    def __init__(self, path: Path, repairs: Repairs | None = None) -> None:
        self._path, self._kind = path, _kind(path)
        self._groups: OrderedDict[int, list[Row]] = OrderedDict()
        if self._kind == "parquet":
            self._parquet = parquet_file(path)
            sizes = [self._parquet.metadata.row_group(n).num_rows for n in range(self._parquet.num_row_groups)]
            self.offsets = np.cumsum([0, *sizes], dtype=np.uint64)
            """Bytes at which rows begin; for Parquet the row at which each group does, and the number of rows."""
            return
        repairs = repairs or Repairs()
        rows = delimited_rows(path, repairs) if self._kind == "csv" else json_line_rows(path, repairs)
        self.offsets = np.frombuffer(array("Q", (start for start, _ in rows)), dtype=np.uint64)
        if self._kind == "csv":
            self._delimiter = delimiter_of(path)
            self._header = header_of(path, self._delimiter)

    def __len__(self) -> int:
        return int(self.offsets[-1]) if self._kind == "parquet" else len(self.offsets)

    def row(self, number: int) -> Row:
        """The row of a number from 0.

        Raises:
            IndexError: no such row.
        """
        if not 0 <= number < len(self):
            raise IndexError(number)
        if self._kind == "parquet":
            group = int(np.searchsorted(self.offsets, number, side="right")) - 1
            return self._group(group)[number - int(self.offsets[group])]
        offset = int(self.offsets[number])
        if self._kind == "csv":
            return row_at(self._path, offset, self._header, self._delimiter)
        return json.loads(next(iter(TextLines(self._path, Repairs(("encoding",)), offset))))

    def _group(self, number: int) -> list[Row]:
        if number not in self._groups:
            while len(self._groups) >= GROUPS:
                self._groups.popitem(last=False)
            table: Any = self._parquet.read_row_group(number)
            self._groups[number] = table.to_pylist()
        self._groups.move_to_end(number)
        return self._groups[number]


def _kind(path: Path) -> str:
    name = path.name.lower()
    if name.endswith(".parquet"):
        return "parquet"
    if not is_gzipped(path) and not is_utf_16(path):
        if name.endswith((".csv", ".tsv")):
            return "csv"
        if name.endswith((".jsonl", ".json", ".ndjson")) and not is_json_list(path):
            return "json"
    raise NotSupported(
        f"data.source: rows by number are read from JSON lines, CSV and Parquet that are neither gzipped nor UTF-16; "
        f"found {path}. Unpack it, or write it as Parquet."
    )
