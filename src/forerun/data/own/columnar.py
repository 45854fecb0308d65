"""Rows of Parquet files and of folders that `datasets.save_to_disk` wrote, in batches: a row group is never whole."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forerun.data.own.columns import Row
from forerun.errors import BadData, MissingExtra

BATCH_ROWS = 1000
STATE, DICT = "state.json", "dataset_dict.json"
"""Files by which folders of `datasets` are known: one split, or several."""


def is_arrow_folder(path: Path) -> bool:
    """Whether `datasets.save_to_disk` wrote the folder."""
    return (path / STATE).is_file() or (path / DICT).is_file()


def parquet_file(path: Path) -> Any:
    """The opened file.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadData: it cannot be read.
    """
    pyarrow = _pyarrow(path)
    from pyarrow import parquet  # type: ignore[import-not-found]

    try:
        return parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadData(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]} Check the file.") from error


def parquet_rows(path: Path) -> Iterator[Row]:
    """Each row; classes that the hub stored as numbers are named.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadData: it cannot be read.
    """
    file, pyarrow = parquet_file(path), _pyarrow(path)
    metadata = file.schema_arrow.metadata or {}
    names = class_names(json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {}))
    exact = [field.name for field in file.schema_arrow if str(field.type).startswith("decimal")]
    bare = [field.name for field in file.schema_arrow if str(field.type) in ("binary", "large_binary")]
    try:
        for batch in file.iter_batches(BATCH_ROWS):
            for row in batch.to_pylist():
                plain = {name: _as_text(row[name]) for name in bare}
                plain |= {name: None if row[name] is None else float(row[name]) for name in exact}
                yield named({**row, **plain}, names)
    except (OSError, pyarrow.ArrowException) as error:
        raise BadData(f"{path}: is damaged: {str(error).splitlines()[0]} Fetch it anew.") from error


def arrow_folder_rows(path: Path) -> Iterator[Row]:
    """Each row of each split, with its name under `split` where there are several.

    Raises:
        MissingExtra: pyarrow is not installed.
        BadData: a file is missing or damaged.
    """
    if (path / DICT).is_file():
        for split in _json(path / DICT)["splits"]:
            for row in _arrow_rows(path / split):
                yield {**row, "split": split}
    else:
        yield from _arrow_rows(path)


def class_names(features: Any) -> dict[str, list[str]]:
    """Columns of class numbers, single or in lists, and the names of the classes."""
    names_of = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else feature[0] if feature else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            names_of[column] = inner["names"]
    return names_of


def named(row: dict[str, Any], names: dict[str, list[str]]) -> Row:
    """A row with class numbers replaced by names; numbers below zero, which hide a label, become None."""
    for column, of_classes in names.items():
        value = row.get(column)
        if isinstance(value, list):
            row[column] = [_name(number, of_classes) for number in value]
        elif value is not None:
            row[column] = _name(value, of_classes)
    return row


def _name(number: Any, names: list[str]) -> Any:
    if not isinstance(number, int):
        return number
    return names[number] if 0 <= number < len(names) else None


def _as_text(value: Any) -> Any:
    """The text of bytes, which Spark and Impala write without saying that they are one; other bytes as they are."""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _arrow_rows(folder: Path) -> Iterator[Row]:
    pyarrow = _pyarrow(folder)
    state, info = _json(folder / STATE), _json(folder / "dataset_info.json")
    names = class_names(info.get("features") or {})
    for entry in state["_data_files"]:
        path = folder / entry["filename"]
        try:
            with pyarrow.memory_map(str(path)) as source:
                for batch in pyarrow.ipc.open_stream(source):
                    for start in range(0, batch.num_rows, BATCH_ROWS):
                        for row in batch.slice(start, BATCH_ROWS).to_pylist():
                            yield named(row, names)
        except (OSError, pyarrow.ArrowException) as error:
            raise BadData(f"{path} cannot be read as Arrow: {str(error).splitlines()[0]} Save it anew.") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: must be the JSON that datasets writes; found {error}. Save the folder anew.") from error


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow  # type: ignore[import-not-found]
        import pyarrow.ipc  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingExtra(
            f"data.source: {path} is Parquet or Arrow, which needs the package pyarrow. Install it with "
            f"pip install 'forerun[hub]', or convert the data to JSON lines."
        ) from error
    return pyarrow
