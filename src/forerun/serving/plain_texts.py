"""Plain text (`.txt`, `.md`, `.log`) → rows that a trained model is asked: it has no columns, so each text is one.

A model that reads one text gets it under the column that it was trained on. One that tags words gets the words of the
text, split at blanks and marks as places in texts are (`data/own/spans.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forerun.data.own.columns import Row
from forerun.data.own.spans import words_of
from forerun.data.own.text_files import is_text_file
from forerun.errors import BadData
from forerun.own.facts import TaskFacts

TEXT = "text"
"""The only column of a row of plain text."""
ONE_TEXT = {
    "text": "text", "labelled": "text", "spans": "text", "tagged": "words", "translation": "source",
    "pairs": "anchor", "triplets": "anchor", "prompt-completion": "prompt", "alpaca": "instruction",
}  # fmt: skip
"""Format → the part that one text can be."""
SECOND_PARTS = ("pair", "input")
"""Parts beside it that a text of its own would be needed for."""


def rows_with_columns(rows: Iterable[Row], facts: TaskFacts, source: str) -> Iterator[Row]:
    """`rows` as they are; of plain text under the column that the model reads.

    Raises:
        BadData: the model reads more than one text, or chats.
    """
    is_plain = is_text_file(Path(source))
    for row in rows:
        yield _with_column(row, facts, source) if is_plain and set(row) == {TEXT} else row


def _with_column(row: Row, facts: TaskFacts, source: str) -> Mapping[str, Any]:
    part = ONE_TEXT.get(facts.format)
    columns = [name for key, name in facts.fields.items() if key in SECOND_PARTS]
    if part is None or columns:
        names = [facts.fields[part], *columns] if part else [*facts.fields.values()][:1]
        raise BadData(
            f"{source}: a plain text has no columns, and this model reads {' and '.join(map(repr, names))}, as in "
            f"training. Give a .jsonl or .csv file with {'that column' if len(names) == 1 else 'those columns'}."
        )
    column = facts.fields[part]
    if part == "words":
        return {column: [word for word, _, _ in words_of(str(row[TEXT]))]}
    return row if column == TEXT else {column: row[TEXT]}
