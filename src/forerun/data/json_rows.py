"""Rows of a data file: JSON lines or one JSON list, gzipped or not."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from forerun.errors import BadData

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows, in file order.

    Raises:
        BadData: the file has another ending, cannot be read, is not JSON, or holds no rows.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise BadData(f"{path}: data files end in {', '.join(SUFFIXES)}; found {path.suffix or 'no ending'!r}.")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw).decode("utf-8-sig")
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadData(
            f"{path}: must be UTF-8 text, gzipped where it ends in .gz; found {error}. Save it as UTF-8, or fetch "
            f"it anew."
        ) from error
    rows = _list(path, text) if text.lstrip().startswith("[") else _lines(path, text)
    if not rows:
        raise BadData(f"{path}: must hold at least one row; found none. Give a file with data.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise BadData(f"{path}, row {number}: each row is a JSON object; found {type(row).__name__}.")
    return rows


def _list(path: Path, text: str) -> list[Any]:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadData(f"{path}: must be one JSON list of objects; found {error}.") from error


def _lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # a JSON text may hold other line ends, such as U+2028
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise BadData(
                    f"{path}, line {number}: must be a JSON object on one line; found {error}. Correct or remove it."
                ) from error
    return rows
