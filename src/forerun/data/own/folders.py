"""What a folder of somebody's files means: tables named by split, one folder a label, or one document a file.

data/train.csv, data/test.csv          tables; a name that begins with a split gives its rows `split`
data/train-00000-of-00002.parquet …    the same in pieces, in order of their names
data/test.csv, data/submission.csv     left out where they have only some of the columns of train.csv
data/pos/1.txt, data/neg/2.txt         labelled texts: the folder's name is the label
data/train/pos/1.txt …                 and the split above it; a folder `unsup` has texts without a label
data/train.en, data/train.de            a text and its translation, line by line (`linked_files.py`)
data/corpus.jsonl, data/qrels/test.tsv  queries and what answers them
data/train.txt, data/test.conll        words with their tags, by endings or by what the files hold
data/a.txt, data/b/c.md                documents
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from forerun.data.own.columns import SPLIT_WORDS, Row
from forerun.data.own.linked_files import aligned_files, is_collection
from forerun.data.own.packed_files import plain_name
from forerun.data.own.repairs import Repairs
from forerun.data.own.tagged_lines import is_tagged_lines, looks_tagged
from forerun.data.own.text_lines import TextLines, decoded, open_bytes
from forerun.errors import BadData

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
ABOUT = re.compile(r"(readme|license|licence|source|notice|changelog|citation|attribution)\b.*", re.IGNORECASE)
"""Files about data, which are no data."""
NO_TEXTS = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico", ".bmp", ".tif", ".tiff", ".mp3", ".wav", ".mp4", ".mov",
    ".webm", ".woff", ".woff2", ".ttf", ".css", ".js", ".map",
)  # fmt: skip
"""Files that lie beside texts and are left out: pictures, sound, and what pages are drawn with."""
COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".o", ".a", ".dll", ".dylib", ".exe", ".class", ".jar", ".wasm")
"""Files that lie beside code and are left out."""
NO_LABELS = ("unsup", "unsupervised", "unlabeled", "unlabelled")
"""Names of folders whose texts have no label, as of aclImdb."""
MOSTLY = 0.9
"""Share of the files that lie in folders of classes, from which the others are left out."""
TAGGED_LINES = 50
"""First lines by which words with tags are told."""
PROSE = (".md", ".txt", ".text", ".rst", ".html", ".htm")


@dataclass(frozen=True)
class FolderPlan:
    """What is read, and how."""

    kind: Literal["tables", "translations", "collection", "sentences", "labels", "documents"]
    files: tuple[Path, ...]
    left_out: tuple[Path, ...] = ()
    """Files beside texts that are none, files beside the folders of classes, tables that lack columns of those to train
    on, and links to folders, which are not followed."""


def plan_folder(folder: Path) -> FolderPlan:
    """What a folder means.

    Raises:
        BadData: nothing to read, or tables beside other files.
    """
    entries = [path for path in sorted(folder.rglob("*")) if not _is_hidden(path, folder)]
    _require_readable(folder, entries)
    files = [path for path in entries if path.is_file()]
    files = [path for path in files if not (path.parent == folder and ABOUT.fullmatch(path.name))]
    if not files:
        raise BadData(f"data.source: {folder} must hold files; found none. Check the path.")
    if all(path.name.lower().endswith((*NO_TEXTS, *COMPILED)) for path in files):
        raise BadData(
            f"data.source: {folder} must hold texts or tables; found {len(files):,} files such as {files[0].name}: "
            f"pictures, sound, or parts of pages. Name another folder."
        )
    out = (*COMPILED, *NO_TEXTS) if any(path.name.lower().endswith(PROSE) for path in files) else COMPILED
    beside = [path for path in files if path.name.lower().endswith(out)]
    files = [path for path in files if path not in set(beside)]
    if aligned_files(files):
        return FolderPlan("translations", tuple(files), tuple(beside))
    if is_collection(files):
        return FolderPlan("collection", tuple(files), tuple(beside))
    tables = [path for path in files if table_kind(path)]
    if tables and all(map(is_tagged_lines, files)):
        return FolderPlan("sentences", tuple(files), tuple(beside))
    if tables and len(tables) < len(files):
        other = next(path for path in files if not table_kind(path))
        raise BadData(
            f"data.source: a folder holds tables or texts; found {tables[0].name} beside {other.relative_to(folder)}. "
            f"Name one file, or move the others away."
        )
    if tables:
        return FolderPlan("tables", tuple(tables))
    beside += [path for path in entries if path.is_symlink() and path.is_dir()]
    if all(map(_has_tags, files)):
        return FolderPlan("sentences", tuple(files), tuple(beside))
    if labelled := _files_of_classes(folder, files):
        return FolderPlan("labels", tuple(labelled), (*sorted({*files} - {*labelled}), *beside))
    return FolderPlan("documents", tuple(files), tuple(beside))


def folder_label(path: Path) -> str | None:
    """The label that a file's folder says."""
    name = path.parent.name
    return None if name.lower() in NO_LABELS else name


def text_file_rows(folder: Path, plan: FolderPlan, repairs: Repairs) -> Iterator[Row]:
    """A row for each file of texts: `text`, `file`, and, where folders say so, `label` and `split`.

    Raises:
        BadData: a file that is no text in UTF-8.
    """
    for path in plan.files:
        with open_bytes(path) as file:
            text = decoded(file.read(), repairs, str(path)).removeprefix("\ufeff")
        parts = path.relative_to(folder).parts
        row: dict[str, str | None] = {"text": text, "file": "/".join(parts)}
        if plan.kind == "labels":
            row["label"] = folder_label(path)
        if len(parts) > 1 and (split := SPLIT_WORDS.get(parts[0].lower())) is not None:
            row["split"] = split
        yield row


def split_of_name(path: Path) -> str | None:
    """The split that the name of a table begins with: `train-00000-of-00002.parquet`, `test.csv`."""
    word = re.match(r"[a-z]+", path.name.lower())
    return SPLIT_WORDS.get(word.group()) if word else None


def table_kind(path: Path) -> str | None:
    """The ending of a table, without that of a packing; None for other files."""
    name = plain_name(path)
    return next((ending for ending in TABLES if name.endswith(ending)), None)


def without_partial(plan: FolderPlan, names_of: Callable[[Path], Sequence[str]]) -> FolderPlan:
    """The plan without tables that have only some of the columns of `train.csv`: rows to answer, and submissions."""
    trained = next((path for path in plan.files if split_of_name(path) == "train"), None)
    others = [path for path in plan.files if split_of_name(path) != "train"]
    if plan.kind != "tables" or trained is None or not others:
        return plan
    names = set(names_of(trained))
    partial = [path for path in others if (own := set(names_of(path))) and own < names]
    files = tuple(path for path in plan.files if path not in partial)
    return replace(plan, files=files, left_out=(*plan.left_out, *partial))


def check_columns(path: Path, names: Sequence[str], first_path: Path, first_names: Sequence[str]) -> None:
    """Tables of one folder are one data set.

    Raises:
        BadData: their columns differ.
    """
    if set(names) != set(first_names):
        raise BadData(
            f"data.source: tables of one folder have the same columns; found {', '.join(first_names)} in "
            f"{first_path.name} and {', '.join(names)} in {path.name}. Name one of the files, such as that to train on."
        )


def _files_of_classes(folder: Path, files: Sequence[Path]) -> list[Path]:
    """Files in folders of classes, `split/label/file` or `label/file`; none where folders say no labels."""
    for depth in (3, 2):
        own = [path for path in files if len(path.relative_to(folder).parts) == depth]
        are_splits = all(path.relative_to(folder).parts[0].lower() in SPLIT_WORDS for path in own)
        is_labelled = len({folder_label(path) for path in own} - {None}) > 1
        if len(own) >= MOSTLY * len(files) and is_labelled and are_splits == (depth == 3):
            return own
    return []


def _has_tags(path: Path) -> bool:
    lines = islice(TextLines(path, Repairs(("encoding",))), TAGGED_LINES)
    return is_tagged_lines(path) or looks_tagged(["".join(lines)])


def _require_readable(folder: Path, entries: Sequence[Path]) -> None:
    """Refuse links that lead nowhere and folders that cannot be opened: their rows would be lost in silence."""
    for path in (folder, *entries):
        if path.is_symlink() and not path.exists():
            raise BadData(f"data.source: {path} is a link to what is not there. Fetch it, or remove the link.")
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise BadData(f"data.source: {path} cannot be opened: no right to. Ask its owner, or move it away.")


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.relative_to(folder).parts)
