"""Files of a folder that are one data set only together: a text and its translation line by line, a search collection.

train.en  train.de  test.en  test.de            as OPUS, WMT and Moses have them; also train.source, train.target
corpus.jsonl  queries.jsonl  qrels/train.tsv    as BEIR has them: who answers which query, by ids
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from forerun.data.own.columns import SPLIT_WORDS, Row, is_empty, number_of
from forerun.data.own.format_parts import LANGUAGES
from forerun.data.own.json_stream import json_line_rows
from forerun.data.own.packed_files import PACKED
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import TextLines
from forerun.errors import BadData

SIDES = {"source": "source", "src": "source", "target": "target", "tgt": "target"}
CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"


def aligned_files(files: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Pairs of files that differ by a language alone, the same two of all; none where there are other files."""
    sides = sorted({_side(path) for path in files})
    stems: dict[Path, dict[str, Path]] = {}
    for path in files:
        stems.setdefault(_plain(path).with_suffix(""), {})[_side(path)] = path
    if "" in sides or len(sides) != 2 or len(files) != 2 * len(stems):
        return []
    return [(both[sides[0]], both[sides[1]]) for both in stems.values()]


def aligned_rows(pairs: Iterable[tuple[Path, Path]], repairs: Repairs) -> Iterator[Row]:
    """A row a line: the line of either file by its language, and the split that the files' name begins with.

    Raises:
        BadData: one file has more lines than the other.
    """
    for one, other in pairs:
        split = SPLIT_WORDS.get(_plain(one).name.split(".")[0].lower())
        lines, others = TextLines(one, repairs), TextLines(other, repairs)
        for text, same in zip_longest(lines, others):
            if text is None or same is None:
                longer, shorter = (one, other) if same is None else (other, one)
                raise BadData(
                    f"{longer}, line {max(lines.number, others.number)}: files in two languages have as many lines; "
                    f"found no such line in {shorter.name}. Align them anew."
                )
            row: Row = {_side(one): text.strip(), _side(other): same.strip()}
            yield row if split is None else {**row, "split": split}


def is_collection(files: Sequence[Path]) -> bool:
    """Whether files are a corpus, queries, and judgements of both."""
    names = {path.name for path in files}
    return {CORPUS, QUERIES} <= names and len(files) > 2 and all(_is_known(path) for path in files)


def collection_rows(files: Sequence[Path], repairs: Repairs) -> Iterator[Row]:
    """`anchor` and `positive` of each judgement above zero, and the split that its file's name says.

    In memory are the texts that are judged.

    Raises:
        BadData: a judgement names what is not there, or is no three fields.
    """
    judged = [path for path in files if path.name not in (CORPUS, QUERIES)]
    named = {place: {ids[place] for path in judged for _, ids in _judgements(path, repairs)} for place in (0, 1)}
    by_name = {path.name: path for path in files}
    texts = [_texts(by_name[name], named[place], repairs) for place, name in enumerate((QUERIES, CORPUS))]
    for path in judged:
        split = SPLIT_WORDS.get(path.stem.lower())
        for line, ids in _judgements(path, repairs):
            for place, name in enumerate((QUERIES, CORPUS)):
                if ids[place] not in texts[place]:
                    raise BadData(
                        f"{path}, line {line}: ids of {name}; found {ids[place]!r}, which is not there. Correct it."
                    )
            row: Row = {"anchor": texts[0][ids[0]], "positive": texts[1][ids[1]]}
            yield row if split is None else {**row, "split": split}


def _judgements(path: Path, repairs: Repairs) -> Iterator[tuple[int, tuple[str, str]]]:
    """Line, and ids of query and text, of each judgement above zero; a header is none."""
    lines = TextLines(path, repairs)
    for cells in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        if lines.number == 1 and cells and number_of(cells[-1]) is None:
            continue
        cells = cells[:1] + cells[2:] if len(cells) == 4 else cells  # as TREC has them, with a 0 between
        score = number_of(cells[2]) if len(cells) == 3 else None
        if score is None:
            raise BadData(
                f"{path}, line {lines.number}: a query's id, a text's id and a number; found {cells}. Correct it."
            )
        if score > 0:
            yield lines.number, (cells[0], cells[1])


def _texts(path: Path, ids: set[str], repairs: Repairs) -> dict[str, str]:
    rows = (row for _, row in json_line_rows(path, repairs) if str(row.get("_id", row.get("id"))) in ids)
    return {
        str(row.get("_id", row.get("id"))): "\n".join(
            str(row[name]) for name in ("title", "text") if not is_empty(row.get(name))
        )
        for row in rows
    }


def _is_known(path: Path) -> bool:
    return path.name in (CORPUS, QUERIES) or (
        path.suffix in (".tsv", ".txt") and JUDGEMENTS in (path.stem, path.parent.name)
    )


def _plain(path: Path) -> Path:
    return path.with_suffix("") if path.suffix in PACKED else path


def _side(path: Path) -> str:
    """The language, or `source` and `target`, that a file's name ends in; empty for other names."""
    ending = _plain(path).suffix.removeprefix(".").lower()
    return ending if ending in LANGUAGES else SIDES.get(ending, "")
