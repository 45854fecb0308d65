"""Rows with somebody's own columns → records that training reads (`row_kinds.py`); an error names row and column."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from forerun.data.own.columns import (
    NO,
    YES,
    Row,
    content_of,
    is_empty,
    number_of,
    says_nothing,
    structure_of,
    value_at,
)
from forerun.data.own.format_parts import MAY_BE_EMPTY
from forerun.data.own.formats import NO_PARTS, RowLayout
from forerun.data.own.labels import label_name, labels_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import (
    CanonicalRow,
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
    reasoning_of,
    weight_of,
)
from forerun.data.own.spans import spans_of, tags_of
from forerun.data.own.spoken_chats import ROLES, is_spoken, shared_turns, spoken_turns
from forerun.data.own.tool_calls import call_texts, calls_of, is_caller, template_calls
from forerun.data.own.tool_columns import tools_text
from forerun.errors import BadData

HALF_PAIR = re.compile("[\ud800-\udfff]")


def canonical_rows(
    rows: Iterable[Row], layout: RowLayout, source: str, repairs: Repairs | None = None
) -> Iterator[CanonicalRow]:
    """Each row as its record, in order; rows that `repairs` allows to leave out are counted there.

    Raises:
        BadData: a row lacks a part, or it is of the wrong kind; the message names row and column.
    """
    repairs = repairs or Repairs()
    for number, row in enumerate(rows, start=1):
        record = checked_row(row, layout, f"{source}, row {number}", repairs)
        if record is not None:
            yield record


def checked_row(row: Row, layout: RowLayout, where: str, repairs: Repairs) -> CanonicalRow | None:
    """The record of a row, or None where it is left out because a text or label is empty and `repairs` allows it.

    Raises:
        BadData: as `canonical_rows`.
    """
    for part, column in layout.fields.items():
        optional = MAY_BE_EMPTY.get(layout.format, ())
        value = row.get(column, value_at(row, column))
        is_missing = says_nothing(value, layout.labels) if part == "label" else is_empty(value)
        if part in optional or part in NO_PARTS or not is_missing:
            continue
        if part not in ("label", "tags", "spans", "desirable"):
            rule = f"the column {column!r} ({part}) holds text; found none.{_columns_if_missing(column, row)}"
            repairs.allow("empty-texts", where, rule)
        elif (layout.labels == "several" or part == "spans") and isinstance(value, list | tuple):
            continue  # an empty list says that none applies
        else:
            actual = "none" if is_empty(value) else f"{value!r}, as programs write an empty cell"
            rule = f"the column {column!r} ({part}) holds a label; found {actual}."
            if layout.labels == "several" and part == "label" and repairs.is_none_meant(where, rule):
                continue
            repairs.allow("missing-labels", where, rule)
        return None
    record = canonical_row(row, layout, where, repairs)
    if isinstance(record, PreferenceRow) and record.better == record.worse:
        rule = f"the columns {layout.fields['chosen']!r} and {layout.fields['rejected']!r} differ; found equal answers."
        repairs.allow("equal-answers", where, rule)
        return None
    return record


def canonical_row(row: Row, layout: RowLayout, where: str, repairs: Repairs | None = None) -> CanonicalRow:
    """The record of one row; `where` names it in errors.

    Raises:
        BadData: a part is missing or of the wrong kind.
    """
    reader = _Reader(row, layout, where, repairs or Repairs())
    match layout.format:
        case "text":
            return TextRow(reader.text("text"))
        case "labelled":
            return LabelledRow(
                reader.text("text"), reader.text("pair") if reader.has("pair") else None, reader.labels()
            )
        case "tagged":
            return reader.tagged()
        case "spans":
            return reader.spans()
        case "messages" | "conversations":
            return ChatRow((*reader.system(), *reader.turns(layout.format)), tools=reader.tools())
        case "alpaca":
            return ChatRow((*reader.system(), *reader.alpaca()), tools=reader.tools())
        case "prompt-completion":
            return reader.prompt_completion()
        case "translation":
            return TranslationRow(reader.text("source"), reader.text("target"))
        case "preference":
            return reader.preference()
        case "unpaired-preference":
            return reader.unpaired()
        case "pairs":
            return PairRow(reader.text("anchor"), reader.text("positive"), reader.score())
        case "triplets":
            return TripletRow(reader.text("anchor"), reader.text("positive"), reader.text("negative"))
        case "auto":
            raise AssertionError("a layout has a format")


class _Reader:
    """Parts of one row, checked."""

    def __init__(self, row: Row, layout: RowLayout, where: str, repairs: Repairs) -> None:
        self._row, self._layout, self._where, self._repairs = row, layout, where, repairs

    def has(self, part: str) -> bool:
        return part in self._layout.fields

    def value(self, part: str) -> Any:
        return value_at(self._row, self._layout.fields[part]) if self.has(part) else None

    def text(self, part: str) -> str:
        """A text as the file has it; a number is its text."""
        column = self._layout.fields[part]
        value = self._row.get(column, self.value(part))
        if isinstance(value, int | float) and not isinstance(value, bool) and not is_empty(value):
            return label_name(value)
        if not isinstance(value, str) or not value.strip():
            raise self._fault(part, "a text", value)
        return self._whole(part, value)

    def labels(self) -> tuple[str, ...]:
        value, kind = self.value("label"), self._layout.labels
        if kind == "number" and number_of(value) is None:
            raise self._fault("label", "a number", value, " If labels are names of classes, set data.labels to one.")
        if kind == "one" and isinstance(value, list | tuple | Mapping):
            raise self._fault("label", "one label (several: data.labels)", value)
        labels = labels_of(value, kind, self._layout.separator)
        if not labels and kind != "several":
            raise self._fault("label", "a label", value)
        return tuple(self._whole("label", label) for label in labels)

    def tagged(self) -> TaggedRow:
        words, tags = (self._list_of_texts(part) for part in ("words", "tags"))
        if len(words) != len(tags):
            raise self._fault("tags", f"one tag for each of {len(words)} words", f"{len(tags)} tags")
        return TaggedRow(words, tags)

    def spans(self) -> TaggedRow:
        spans = spans_of(self.value("spans"))
        if spans is None:
            raise self._fault("spans", "a list of places with start, end and label", self.value("spans"))
        try:
            words, tags = tags_of(self.text("text"), spans)
        except ValueError as error:
            column = self._layout.fields["spans"]
            raise BadData(f"{self._where}: the column {column!r} names {error}. Correct it.") from error
        return TaggedRow(words, tags)

    def system(self) -> tuple[Turn, ...]:
        value = self.value("system")
        if isinstance(value, Mapping) and _is_text(text := content_of(value)):
            return (Turn("system", self._whole("system", text)),)
        return () if is_empty(value) else (Turn("system", self.text("system")),)

    def tools(self) -> str:
        """JSON of the tools that the row describes; empty where it describes none."""
        if not self.has("tools"):
            return ""
        column = self._layout.fields["tools"]
        text = tools_text(self._row.get(column, self.value("tools")))
        if text is None:
            actual = repr(self.value("tools"))[:120]
            rule = f"the column {column!r} (tools) holds a list of JSON schemas with a name each; found {actual}."
            self._repairs.allow("broken-tools", self._where, rule)
        return self._whole("tools", text or "")

    def turns(self, part: str) -> tuple[Turn, ...]:
        turns = self._turns(part, self.value(part))
        if turns[0].role == "assistant" and not self.system():
            column = self._layout.fields[part]
            rule = (
                f"the column {column!r} ({part}) begins with a question or a system message; found the answer "
                f"{turns[0].content[:60]!r} first."
            )
            self._repairs.allow("answers-first", self._where, rule)
            turns = tuple(dropwhile(lambda turn: turn.role == "assistant", turns))
        if all(turn.role != "assistant" for turn in turns):
            raise self._fault(part, "at least one message of the assistant", [turn.role for turn in turns])
        if self.system() and turns[0].role == "system":
            raise self._fault(part, "no system message beside the column of them", turns[0].content[:60])
        return turns

    def history(self) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        for exchange in self.value("history") or []:
            if not isinstance(exchange, list | tuple) or len(exchange) != 2 or not all(map(_is_text, exchange)):
                raise self._fault("history", "a list of question and answer", exchange)
            question, answer = (self._whole("history", text) for text in exchange)
            turns += [Turn("user", question), Turn("assistant", answer)]
        return tuple(turns)

    def alpaca(self) -> tuple[Turn, ...]:
        question = self.text("instruction")
        if not is_empty(self.value("input")):
            question = f"{question.strip()}\n\n{self.text('input').strip()}"
        return (*self.history(), Turn("user", question), Turn("assistant", self.text("output")))

    def prompt_completion(self) -> ChatRow:
        prompt, completion = self.value("prompt"), self.value("completion")
        tools = self.tools()
        if isinstance(prompt, list) or isinstance(completion, list):
            turns = (*self._turns("prompt", prompt), *self._answer("completion", completion))
            return ChatRow((*self.system(), *turns), tools=tools)
        turns = (Turn("user", self.text("prompt")), Turn("assistant", self.text("completion")))
        return ChatRow((*self.system(), *turns), not self.has("system") and not tools, tools)

    def preference(self) -> PreferenceRow:
        prompt, better, worse = (self.value(part) for part in ("prompt", "chosen", "rejected"))
        tools = self.tools()
        if isinstance(better, str) and isinstance(worse, str) and is_empty(prompt):
            row = self._preference_of_texts(better, worse)
            return replace(row, is_plain=row.is_plain and not tools, tools=tools)
        are_texts = all(isinstance(value, str) for value in (prompt, better, worse))
        is_plain = are_texts and not self.has("system") and not tools
        start = () if is_empty(prompt) else self._question(prompt)
        good, bad = self._answer("chosen", better), self._answer("rejected", worse)
        if not start or good[: len(start)] == start == bad[: len(start)] or good[0].role != "assistant":
            shared = shared_turns(good, bad)
            start, good, bad = (start or good[:shared]), good[shared:], bad[shared:]
        if not start:
            raise self._fault(
                "chosen",
                "messages that begin as those of rejected, or a column of prompts in data.fields.prompt",
                better,
            )
        if not good or not bad:
            raise self._fault("chosen", "an answer after the prompt, as rejected does", better)
        return PreferenceRow((*self.system(), *start), good, bad, is_plain, tools)

    def unpaired(self) -> UnpairedRow:
        """One answer, in a column of its own or the last message of the prompt's."""
        verdict, tools = str(self.value("desirable")).strip().lower(), self.tools()
        if verdict not in (*YES, *NO):
            raise self._fault("desirable", "yes or no (true, false, 1, 0)", self.value("desirable"))
        if not self.has("completion"):
            turns = (*self.system(), *self.turns("prompt"))
            if turns[-1].role != "assistant":
                raise self._fault("prompt", "a chat that ends in the answer that is judged", turns[-1].role)
            return UnpairedRow(turns[:-1], turns[-1:], verdict in YES, tools=tools)
        prompt, completion = self.value("prompt"), self.value("completion")
        before = (*self.system(), *self.history())
        is_plain = isinstance(prompt, str) and isinstance(completion, str)
        is_plain = is_plain and not (tools or any(map(self.has, ("system", "history", "input"))))
        answer = self._answer("completion", completion)
        return UnpairedRow((*before, *self._question(prompt)), answer, verdict in YES, is_plain, tools)

    def score(self) -> float | None:
        if not self.has("score"):
            return None
        score = number_of(self.value("score"))
        if score is None:
            raise self._fault("score", "a number", self.value("score"))
        return score

    def _preference_of_texts(self, better: str, worse: str) -> PreferenceRow:
        """Two whole chats, or two texts, that begin alike."""
        if is_spoken(better) and is_spoken(worse):
            good, bad = spoken_turns(better), spoken_turns(worse)
            shared, is_plain = shared_turns(good, bad), False
            start, good, bad = good[:shared], good[shared:], bad[shared:]
        else:
            length = next((i for i, (a, b) in enumerate(zip(better, worse, strict=False)) if a != b), 0)
            length = max(better.rfind(" ", 0, length), better.rfind("\n", 0, length)) + 1
            start, is_plain = (Turn("user", better[:length]),) if better[:length].strip() else (), True
            good, bad = (Turn("assistant", better[length:]),), (Turn("assistant", worse[length:]),)
        if not start or not good or not bad:
            raise self._fault("chosen", "text that begins as that of rejected, or a column of prompts", better)
        return PreferenceRow(start, good, bad, is_plain)

    def _question(self, prompt: Any) -> tuple[Turn, ...]:
        if isinstance(prompt, list):
            return self._turns("prompt", prompt)
        text = self.text("prompt")
        if not is_empty(self.value("input")):
            text = f"{text.strip()}\n\n{self.text('input').strip()}"
        return (Turn("user", text),)

    def _answer(self, part: str, value: Any) -> tuple[Turn, ...]:
        if isinstance(value, Mapping):
            value = [value]
        return self._turns(part, value) if isinstance(value, list) else (Turn("assistant", self.text(part)),)

    def _turns(self, part: str, value: Any) -> tuple[Turn, ...]:
        if isinstance(value, str):
            return (Turn("user", self.text(part)),)
        if not isinstance(value, list | tuple) or not value:
            raise self._fault(part, "a list of messages", value)
        return tuple(self._turn(part, message) for message in value)

    def _turn(self, part: str, message: Any) -> Turn:
        message = structure_of(message)
        if not isinstance(message, Mapping):
            raise self._fault(part, "messages with role and content, or from and value", message)
        speaker, content = message.get("role", message.get("from")), content_of(message)
        role = ROLES.get(str(speaker).lower())
        if role is None:
            raise self._fault(part, f"a role among {', '.join(ROLES)}", speaker)
        if role == "assistant" and (calls := calls_of(message)):
            text = content if isinstance(content, str) and not is_caller(message) else ""
            return self._turn_of_calls(part, text, calls, {**reasoning_of(message), **weight_of(message)})
        if not isinstance(content, str) or (role == "assistant" and not content.strip()):
            raise self._fault(part, f"a text in each message of {role} (pictures are not read)", message)
        keys = ("tool_call_id", "name") if role == "tool" else ()
        more = {key: message[key] for key in keys if _is_text(message.get(key))}
        more |= {**reasoning_of(message), **weight_of(message)} if role == "assistant" else {}
        return Turn(role, self._whole(part, content), self._json(part, more))

    def _turn_of_calls(self, part: str, content: str, calls: list[Any], more: Mapping[str, Any]) -> Turn:
        """An answer that calls tools: as the chat template reads it, or as text where a repair says so."""
        read = template_calls(calls)
        column = self._layout.fields[part]
        if "tool-calls" in self._repairs.allowed:
            self._repairs.allow("tool-calls", self._where, f"the column {column!r} holds a call of a tool.")
        elif read is None:
            rule = f"the column {column!r} ({part}) holds calls of tools with a name and arguments that are a mapping"
            self._repairs.allow("broken-tools", self._where, f"{rule}; found {str(calls)[:120]}.")
        else:
            return Turn("assistant", self._whole(part, content), self._json(part, {"tool_calls": read, **more}))
        text = self._whole(part, "\n".join(filter(None, [content, *call_texts(calls)])))
        return Turn("assistant", text, self._json(part, more))

    def _json(self, part: str, more: Mapping[str, Any]) -> str:
        return self._whole(part, json.dumps(more, ensure_ascii=False)) if more else ""

    def _whole(self, part: str, text: str) -> str:
        """The text; half a surrogate pair, which JSON can hold and no tokenizer reads, becomes U+FFFD where that is
        allowed."""
        if text.isascii() or HALF_PAIR.search(text) is None:
            return text
        column = self._layout.fields[part]
        rule = f"the column {column!r} ({part}) holds whole characters; found half a surrogate pair."
        self._repairs.allow("encoding", self._where, rule)
        return HALF_PAIR.sub("\ufffd", text)

    def _list_of_texts(self, part: str) -> tuple[str, ...]:
        value = self.value(part)
        if isinstance(value, str):
            if value[:1] == "[" and value.rstrip()[-1:] == "]":  # as NumPy prints arrays: blanks, and no commas
                raise self._fault(part, "a list with commas between its texts, or a text with blanks", value)
            value = value.split()
        if not isinstance(value, list | tuple) or not value or any(isinstance(v, list | Mapping) for v in value):
            raise self._fault(part, "a list of texts, or a text with blanks between them", value)
        if any(item is None for item in value):
            raise self._fault(part, "a text in each place of the list", value)
        return tuple(self._whole(part, label_name(item)) for item in value)

    def _fault(self, part: str, rule: str, value: Any, remedy: str = "") -> BadData:
        column = self._layout.fields[part]
        actual = "nothing" if value is None else repr(value)
        actual = actual if len(actual) <= 120 else f"{actual[:120]}…"
        return BadData(
            f"{self._where}: the column {column!r} ({part} of {self._layout.format}) holds {rule}; found {actual}."
            f"{_columns_if_missing(column, self._row)} Correct the row, or name another column in data.fields.{part}."
            + remedy
        )


def _columns_if_missing(column: str, row: Row) -> str:
    return "" if column in row or "." in column else f" The columns are {', '.join(row)}."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
