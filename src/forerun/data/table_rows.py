"""Rows of a table: JSON lines, CSV, Parquet, or every split of a data set on the Hugging Face hub, as mappings."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.data.hub_rows import load_from_hub
from forerun.data.json_rows import SUFFIXES as JSON_SUFFIXES
from forerun.data.json_rows import read_rows
from forerun.errors import BadData, MissingExtra

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv"), (".parquet",)
SUFFIXES = (*JSON_SUFFIXES, *CSV_SUFFIXES, *PARQUET_SUFFIXES)
Rows = Sequence[Mapping[str, Any]]


def read_table(source: str, split_field: str) -> Rows:
    """All rows of `source`, a file or a hub id; rows from the hub say their split under `split_field`.

    Raises:
        BadData: no such file or data set, or it is malformed or empty.
        MissingExtra: a package that reads it is not installed.
    """
    path, ending = Path(source), source.lower()
    if ending.endswith(JSON_SUFFIXES):
        return read_rows(path)
    if ending.endswith(CSV_SUFFIXES):
        return _csv(path)
    if ending.endswith(PARQUET_SUFFIXES):
        return _parquet(path)
    if source.count("/") == 1 and not source.startswith((".", "/")) and not path.exists():
        return _hub(source, split_field)
    raise BadData(
        f"data.source: a file ending in {', '.join(SUFFIXES)} or a hub id such as owner/name; found {source!r}, "
        f"which is neither. Check the path."
    )


def _csv(path: Path) -> Rows:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
            rows = list(csv.DictReader(lines, delimiter=delimiter, strict=True))
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{path}: must be CSV in UTF-8 with a header line; found {error}.") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise BadData(f"{path}, line {number}: must have as many fields as the header; found more or fewer.")
    return _not_empty(rows, str(path))


def _parquet(path: Path) -> Rows:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(
            f"data.source: {path} is Parquet, which needs the package pyarrow. Install it with "
            f"pip install 'forerun[hub]', or convert the file to JSON lines."
        ) from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise BadData(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]} Check the path.") from error
    return _not_empty(rows, str(path))


def _hub(source: str, split_field: str) -> Rows:
    loaded = load_from_hub(source)
    rows = [{**_named(row, part.features), split_field: name} for name, part in loaded.items() for row in part]
    return _not_empty(rows, source)


def _named(row: Mapping[str, Any], features: Any) -> dict[str, Any]:
    """A row with class numbers replaced by their names; labels of tests are sometimes hidden as -1."""
    named_row = dict(row)
    for field, feature in features.items():
        names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
        value = named_row[field]
        if names and isinstance(value, int) and 0 <= value < len(names):
            named_row[field] = names[value]
        elif names and isinstance(value, list):
            named_row[field] = [names[number] for number in value]
    return named_row


def _not_empty(rows: Rows, where: str) -> Rows:
    if not rows:
        raise BadData(f"{where}: must hold at least one row; found none. Give data.")
    return rows
