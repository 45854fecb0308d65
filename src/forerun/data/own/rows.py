"""Rows of somebody's own data, one after the other: what the file says, in mappings from column to value.

    table.csv  .tsv  (comma, semicolon, tab or bar)     rows.jsonl  .ndjson     list.json         each also .gz, .zip, …
    table.parquet          a folder that `datasets.save_to_disk` wrote          a folder of files (`folders.py`)
    notes.txt  .md  .log   a paragraph or a line a row, a line with labels, or a table of tabs (`text_files.py`)
    words.conll  .bio      a word and its tag a line, a sentence a row (`tagged_lines.py`)
    owner/name  owner/name:configuration     the Hugging Face hub, when online

Nothing is ever whole in memory, and nothing is lost in silence: a bad row is an error, or a repair that the user
allowed and that is counted (`repairs.py`).
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from forerun.data.hub_rows import load_from_hub
from forerun.data.own.columnar import arrow_folder_rows, class_names, is_arrow_folder, named, parquet_rows
from forerun.data.own.columns import Row, is_empty
from forerun.data.own.delimited import comment_lines, delimited_rows
from forerun.data.own.file_heads import require_data
from forerun.data.own.flag_columns import with_flags
from forerun.data.own.folders import (
    TABLES,
    FolderPlan,
    check_columns,
    plan_folder,
    split_of_name,
    table_kind,
    text_file_rows,
    without_partial,
)
from forerun.data.own.json_stream import is_json_list, json_line_rows, json_list_rows, rows_of_object, single_objects
from forerun.data.own.linked_files import aligned_files, aligned_rows, collection_rows
from forerun.data.own.listed_texts import each_text
from forerun.data.own.marked_answers import with_marks
from forerun.data.own.message_trees import with_trees
from forerun.data.own.repairs import Repairs
from forerun.data.own.tagged_lines import ENDINGS, is_tagged_lines, tagged_line_rows
from forerun.data.own.text_files import TEXTS, is_text_file, text_file_kind, text_lines_rows
from forerun.data.own.word_rows import with_sentences
from forerun.errors import BadData
from forerun.settings.schema import DataSettings, Repair

OTHER_PROGRAMS = {
    ".arrow": "Name the folder that datasets.save_to_disk wrote",
    ".conllu": "Write word and tag a line to a .conll file",
    ".docx": "Save it as plain text (.txt)",
    ".ipynb": "Write its cells to a .txt or .jsonl file",
    ".xml": "Write a JSON object a row to a .jsonl file",
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "Save it from the spreadsheet as CSV (UTF-8)"),
    **dict.fromkeys((".pdf", ".html", ".rtf", ".epub", ".srt", ".vtt"), "Write its text to a .txt or .md file"),
    **dict.fromkeys(
        (".tar.gz", ".tar.xz", ".tar.bz2", ".tar", ".tgz", ".7z", ".rar", ".zip"),
        "Unpack it, and name the file or folder inside",
    ),
    **dict.fromkeys((".lz4", ".br", ".lzma"), "Unpack it, or pack it as .gz"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "Export the table as CSV"),
    **dict.fromkeys((".feather", ".pkl", ".pickle", ".npz", ".npy", ".h5", ".orc", ".avro"), "Write it as Parquet"),
}
"""Ending of what others write → what to do with it."""
TEXT_ROWS = {
    "labelled lines": "a line with labels", "table": "a row of the table",
    "sentences": "a sentence of words with tags", "paragraphs": "a paragraph (blank lines between them)",
    "lines": "a line",
}  # fmt: skip
"""Kind of a file of text → what a row of it is."""
FOLDER_MEANINGS = {
    "tables": "a row of its tables", "sentences": "a sentence of words with tags",
    "translations": "a line in two languages", "collection": "a query and a text that answers it",
    "labels": "a file, labelled by its folder", "documents": "a file",
}  # fmt: skip
LEFT_SHOWN = 3
"""Files that are left out and named; all are counted."""
ID_COLUMNS = ("id", "_id", "uid", "guid", "uuid", "row_id", "example_id", "sample_id")
NO_ID = "none"
"""`data.fields.id: none` says that no column names a row, though one is called so."""


def read_own_rows(
    source: str,
    repair: Sequence[Repair] = (),
    *,
    repairs: Repairs | None = None,
    fields: Mapping[str, str] | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Rows of `source` in file order, without those that `repair` leaves out; `repairs` counts them.

    Rows are the same mappings each time: bad rows, and rows whose id came before in the same split, are errors unless
    allowed. `fields` are those of `data`: `id` names the ids, by default a column of `ID_COLUMNS`; `header` says
    whether the first line of a table names columns; `label` may join columns of yes and no, `sentence` rows of words.

    Raises:
        BadData: no such file or data set, no rows, or rows that no repair of `repair` is for.
        MissingExtra: a package that reads it is not installed.
    """
    repairs, fields = repairs or Repairs(tuple(repair)), fields or {}
    is_anything = False
    rows = _without_names(_rows(source, repairs, fields.get("header")), source, repairs)
    rows = with_sentences(rows, fields, source, repairs)
    rows = with_trees(rows, fields, source, repairs)
    rows = with_flags(rows, fields.get("label"), source, repairs)
    rows = with_marks(_each_once(rows, source, repairs, fields.get("id")), fields, source, repairs)
    for row in each_text(rows, fields):
        is_anything = True
        yield row
    if not is_anything:
        lost = " ".join(f"{repairs.counts[kind]:,} left out, the first: {rule}" for kind, rule in repairs.rules.items())
        rest = f" that is left. {lost}" if lost else "."
        raise BadData(f"{source}: must hold at least one row; found none{rest} Give data.")


def rows_of(data: DataSettings, repairs: Repairs | None = None, source: str | None = None) -> Iterator[Row]:
    """Rows of `data.source`, or of another file under the same settings.

    Raises:
        BadData: as `read_own_rows`, or there is no source.
        MissingExtra: as `read_own_rows`.
    """
    source = source or data.source
    if source is None:
        raise BadData("data.source: a file, a folder or a hub id; found none. Set it.")
    return read_own_rows(source, repairs=repairs or Repairs(tuple(data.repair)), fields=data.fields)


def is_hub_id(source: str) -> bool:
    """Whether `source` can only be a data set of the hub."""
    path = Path(source)
    is_name = source.count("/") == 1 and not source.startswith((".", "/", "~"))
    return (
        is_name and not path.exists() and not table_kind(path) and not is_text_file(path) and not is_tagged_lines(path)
    )


def row_meaning(source: str) -> str:
    """What a row of `source` is, in a few words."""
    path = Path(source)
    if path.is_dir() and not is_arrow_folder(path):
        plan = plan_of(path)
        left = ", ".join(str(other.relative_to(path)) for other in plan.left_out[:LEFT_SHOWN])
        left = f"; left out: {len(plan.left_out):,}, such as {left}" if plan.left_out else ""
        return f"{FOLDER_MEANINGS[plan.kind]} ({len(plan.files):,} files{left})"
    if is_tagged_lines(path):
        return "a sentence of words with tags"
    if is_text_file(path) and not table_kind(path):
        return TEXT_ROWS[text_file_kind(path)]
    if table_kind(path) in (".csv", ".tsv") and (comments := comment_lines(path)):
        return f"a row of the table (after {comments} {'line' if comments == 1 else 'lines'} of comments)"
    return "a row of the table" if table_kind(path) in (".csv", ".tsv", ".parquet") else "a JSON object"


def _rows(source: str, repairs: Repairs, header: str | None) -> Iterator[Row]:
    path = Path(source)
    require_data(path)
    if path.is_dir():
        yield from arrow_folder_rows(path) if is_arrow_folder(path) else _folder(path, repairs, header)
    elif is_tagged_lines(path):
        yield from tagged_line_rows(path, repairs)
    elif table_kind(path):
        yield from _table(path, repairs, header)
    elif is_text_file(path):
        kind = text_file_kind(path, header)
        is_table = kind == "table"
        yield from _delimited(path, repairs, header) if is_table else text_lines_rows(path, kind, repairs)
    elif is_hub_id(source):
        yield from _hub(source)
    else:
        raise BadData(
            f"data.source: a file ending in {', '.join((*TABLES, *TEXTS, *ENDINGS))} (perhaps packed: .gz), "
            f"a folder, or a hub id such as owner/name; found {source!r}, which is none of them. {_remedy(path)}."
        )


def _table(path: Path, repairs: Repairs, header: str | None) -> Iterator[Row]:
    kind = table_kind(path)
    if kind == ".parquet":
        yield from parquet_rows(path)
    elif kind in (".csv", ".tsv"):
        yield from _delimited(path, repairs, header)
    elif is_json_list(path):
        yield from json_list_rows(path, repairs)
    elif kind == ".json" and (inside := rows_of_object(path, repairs)):
        yield from inside
    else:
        rows = (row for _, row in json_line_rows(path, repairs))
        yield from single_objects(path, rows) if kind == ".json" else rows


def _delimited(path: Path, repairs: Repairs, header: str | None) -> Iterator[Row]:
    yield from (row for _, row in delimited_rows(path, repairs, header))


def plan_of(folder: Path, header: str | None = None) -> FolderPlan:
    """What a folder means, without tables that have only some of the columns to train on.

    Raises:
        BadData: as `plan_folder`.
    """

    def names_of(path: Path) -> Sequence[str]:
        require_data(path)
        return list(next(_table(path, Repairs(get_args(Repair)), header), {}))

    return without_partial(plan_folder(folder), names_of)


def _folder(folder: Path, repairs: Repairs, header: str | None) -> Iterator[Row]:
    plan = plan_of(folder, header)
    if plan.kind in ("labels", "documents"):
        yield from text_file_rows(folder, plan, repairs)
        return
    if plan.kind == "translations":
        yield from aligned_rows(aligned_files(plan.files), repairs)
        return
    if plan.kind == "collection":
        yield from collection_rows(plan.files, repairs)
        return
    first: list[str] = []
    for path in plan.files:
        require_data(path)
        split = split_of_name(path)
        rows = tagged_line_rows(path, repairs) if plan.kind == "sentences" else _table(path, repairs, header)
        for number, row in enumerate(rows):
            if number == 0:
                first = first or list(row)
                check_columns(path, list(row), plan.files[0], first)
            yield row if split is None or "split" in row else {**row, "split": split}


def _hub(source: str) -> Iterator[Row]:
    loaded = load_from_hub(*source.split(":"))
    for split, part in loaded.items():
        names = class_names(part.features.to_dict())
        for row in part:
            yield {**named(dict(row), names), "split": split}


def _remedy(path: Path) -> str:
    name = path.name.lower()
    other = "Rename it after what it holds: .txt, .csv or .jsonl" if path.is_file() else "Check the path"
    return next((what for ending, what in OTHER_PROGRAMS.items() if name.endswith(ending)), other)


def _without_names(rows: Iterator[Row], source: str, repairs: Repairs) -> Iterator[Row]:
    """Rows but for those that say the names of their own columns, as tables leave them that were joined and converted;
    files of comma-separated values tell theirs themselves."""
    for number, row in enumerate(rows, start=1):
        if len(row.keys() - {"split"}) > 1 and all(value == name for name, value in row.items() if name != "split"):
            rule = f"a row holds values; found the names of its columns ({', '.join(row)}) again."
            repairs.allow("ragged-rows", f"{source}, row {number}", rule)
        else:
            yield row


def _each_once(rows: Iterator[Row], source: str, repairs: Repairs, column: str | None) -> Iterator[Row]:
    """Rows whose id did not come before."""
    past = _PastIds()
    for number, row in enumerate(rows, start=1):
        if number == 1 and column is None:
            column = next((name for name in ID_COLUMNS if name in row), NO_ID)
        value = None if column in (None, NO_ID) else row.get(column)
        if is_empty(value) or past.is_new(value, row.get("split")):
            yield row
        else:
            rule = (
                f"ids in the column {column!r} are each used once; found {value!r} again (if it names no row, set "
                f"data.fields: {{id: {NO_ID}}})."
            )
            repairs.allow("repeated-ids", f"{source}, row {number}", rule)


class _PastIds:
    """Ids that came before, by split: a run of whole numbers one after the other as its ends, others by a hash."""

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()
        self._runs: dict[Any, list[int]] = {}

    def is_new(self, value: Any, split: Any) -> bool:
        text = str(value)
        number = int(text) if text.isascii() and text.isdecimal() and (text[0] != "0" or text == "0") else None
        if number is not None:
            run = self._runs.setdefault(split, [number, number - 1])
            if run[0] <= number <= run[1]:
                return False
            if number == run[1] + 1 and not self._hashes:
                run[1] = number
                return True
        key = hashlib.blake2b(repr((split, text)).encode(), digest_size=8).digest()
        if key in self._hashes:
            return False
        self._hashes.add(key)
        return True
