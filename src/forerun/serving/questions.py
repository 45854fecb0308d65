"""Rows of a file → what a trained model is asked: the same columns as in training, without the answers.

A row is read by the same rules as a training row (`data/own/canonical.py`), with a stand-in where its answer would be;
the answer, and everything after it, is dropped. So whatever could be trained on can be asked, and errors read alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from forerun.data.own.canonical import checked_row
from forerun.data.own.columns import value_at
from forerun.data.own.format_parts import PARTS
from forerun.data.own.formats import RowLayout
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import (
    ChatRow,
    LabelledRow,
    PairRow,
    PreferenceRow,
    TaggedRow,
    TextRow,
    TranslationRow,
    TripletRow,
    Turn,
    UnpairedRow,
)
from forerun.errors import BadData
from forerun.own.facts import TaskFacts
from forerun.settings.schema import DataFormat

STAND_IN = "?"
ANSWERS: dict[str, tuple[str, ...]] = {
    "labelled": ("label",), "tagged": ("tags",), "spans": ("spans",), "alpaca": ("output",),
    "prompt-completion": ("completion",), "translation": ("target",), "preference": ("chosen", "rejected"),
    "unpaired-preference": ("completion", "desirable"),
    "pairs": ("positive",), "triplets": ("positive", "negative"),
}  # fmt: skip
"""Parts of each format that a model answers, or that only training needs."""
CHAT_PARTS = {"messages": "messages", "conversations": "conversations", "unpaired-preference": "prompt"}
"""Formats whose answer may be the last message of a chat → the part that holds the chat."""


@dataclass(frozen=True, slots=True)
class Question:
    """One row to answer: a text, perhaps with a second one; or words; or messages."""

    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    messages: tuple[Turn, ...] = ()
    tools: str = ""
    """JSON of the tools that may be called; empty where none are described."""


def require_columns(rows: Sequence[Mapping[str, Any]], facts: TaskFacts, source: str) -> None:
    """Check that some of the first rows of a file have the columns that the model reads.

    Raises:
        BadData: none has one of them.
    """
    parts = [
        part for part in PARTS[cast(DataFormat, facts.format)].required if part not in ANSWERS.get(facts.format, ())
    ]
    for part in parts:
        column = facts.fields[part]
        if column not in rows[0] and all(value_at(row, column) is None for row in rows):
            raise BadData(
                f"{source}: a column {column!r}, which the model reads ({part}), as in training; found "
                f"{', '.join(map(repr, rows[0]))}. Rename the column."
            )


def question_of(row: Mapping[str, Any], facts: TaskFacts, where: str, repairs: Repairs) -> Question | None:
    """The question of a row; None where it has an empty text and `repairs`, which counts it, allows that.

    `where` names the row in errors.

    Raises:
        BadData: a column is missing or of the wrong kind.
    """
    layout = RowLayout(
        format=cast(DataFormat, facts.format), fields=facts.fields,
        labels="one" if facts.label_kind == "none" else facts.label_kind,
    )  # fmt: skip
    filled = {**row, **_stand_ins(row, facts, where)}
    match record := checked_row(filled, layout, where, repairs):
        case None:
            return None
        case TextRow(text):
            return Question(text)
        case LabelledRow(text, pair):
            return Question(text, pair)
        case TaggedRow(words):
            text = str(value_at(row, facts.fields["text"])) if facts.format == "spans" else ""
            return Question(text, words=words)
        case TranslationRow(source):
            return Question(source)
        case PairRow(anchor) | TripletRow(anchor):
            return Question(anchor)
        case ChatRow(messages):
            return _asked_as_trained(_before_answer(messages), record.tools, facts)
        case PreferenceRow(prompt) | UnpairedRow(prompt):
            return _asked_as_trained(prompt, record.tools, facts)


def _asked_as_trained(messages: tuple[Turn, ...], tools: str, facts: TaskFacts) -> Question:
    """Messages for the chat template where rows went through it, else the text that they make."""
    if facts.is_chat:
        return Question(messages=messages, tools=tools)
    between = "\n\n" if facts.workload == "seq2seq-lm" else ""  # `own/rewriting.py`, `own/language.py`
    return Question(between.join(turn.content for turn in messages))


def _stand_ins(row: Mapping[str, Any], facts: TaskFacts, where: str) -> dict[str, Any]:
    """Values for the columns of answers, whether the file has them or not."""
    columns = {part: facts.fields[part] for part in ANSWERS.get(facts.format, ()) if part in facts.fields}
    if facts.format in CHAT_PARTS and "completion" not in facts.fields:
        column = facts.fields[CHAT_PARTS[facts.format]]
        chat = row.get(column)
        if not isinstance(chat, Sequence) or isinstance(chat, str):
            raise BadData(f"{where}: the column {column!r} holds a list of messages; found {str(chat)[:60]!r}.")
        return {column: [*chat, {"role": "assistant", "content": STAND_IN}]}
    if facts.format == "tagged":
        words = row.get(facts.fields["words"]) or ()
        return {columns["tags"]: [STAND_IN] * len(words.split() if isinstance(words, str) else words)}
    if facts.format == "spans":
        return {columns["spans"]: []}
    values = {part: STAND_IN for part in columns}
    if facts.format == "labelled":
        values["label"] = 0 if facts.label_kind == "number" else STAND_IN  # type: ignore[assignment]
    if facts.format == "preference":
        values["rejected"] = STAND_IN * 2
    if facts.format == "unpaired-preference":
        values["desirable"] = "true"
    return {columns[part]: value for part, value in values.items()}


def _before_answer(messages: Sequence[Turn]) -> tuple[Turn, ...]:
    """The messages up to the last one that is not the assistant's."""
    last = max((place for place, turn in enumerate(messages) if turn.role != "assistant"), default=-1)
    return tuple(messages[: last + 1])
