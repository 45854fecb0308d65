"""Rows of own data in one form, in three parts: training, validation, test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.data.labelled_text import uniform
from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData
from forerun.settings.schema import Settings


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str


@dataclass(frozen=True, slots=True)
class TextRow:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One or two texts and what they are."""

    text: str
    pair: str | None
    labels: tuple[str, ...]
    """One name; or several, sorted; or a number as text."""

    @property
    def number(self) -> float:
        """The label as a number, where labels are numbers."""
        return float(self.labels[0])


@dataclass(frozen=True, slots=True)
class TaggedRow:
    """Words, and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat; answers are learnt."""

    messages: tuple[Turn, ...]
    is_plain: bool = False
    """Whether prompt and completion are texts that follow each other without a chat template."""


@dataclass(frozen=True, slots=True)
class TranslationRow:
    """A text and what to make of it."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """Two answers to one prompt."""

    prompt: tuple[Turn, ...]
    better: tuple[Turn, ...]
    worse: tuple[Turn, ...]
    is_plain: bool = False
    """Whether prompt and answers are texts that follow each other without a chat template."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two texts that belong together, perhaps to a degree."""

    anchor: str
    positive: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class TripletRow:
    """A text, one that belongs to it, and one that does not."""

    anchor: str
    positive: str
    negative: str


CanonicalRow = TextRow | LabelledRow | TaggedRow | ChatRow | TranslationRow | PreferenceRow | PairRow | TripletRow


def texts_of(record: CanonicalRow) -> tuple[str, ...]:
    """The texts of a record, in order: what is counted, compared and searched."""
    match record:
        case TextRow(text):
            return (text,)
        case LabelledRow(text, pair, _):
            return (text,) if pair is None else (text, pair)
        case TaggedRow(words, _):
            return (" ".join(words),)
        case ChatRow(messages):
            return tuple(turn.content for turn in messages)
        case TranslationRow(source, target):
            return (source, target)
        case PreferenceRow(prompt, better, worse):
            return tuple(turn.content for turn in (*prompt, *better, *worse))
        case PairRow(anchor, positive):
            return (anchor, positive)
        case TripletRow(anchor, positive, negative):
            return (anchor, positive, negative)


@dataclass(frozen=True)
class OwnParts:
    """Canonical rows of the three parts, with what was recognised."""

    format: str
    fields: Mapping[str, str]
    train: Sequence[Any]
    validation: Sequence[Any]
    test: Sequence[Any]
    label_kind: str = "one"
    notes: tuple[str, ...] = field(default=())


def read_parts(settings: Settings) -> OwnParts:
    """Read, recognise and split."""
    data = settings.data
    assert data.source is not None
    raw = list(read_own_rows(data.source, data.repair))
    kind = data.format if data.format != "auto" else _guess(raw[0])
    rows = [_row(kind, row, data.fields, settings) for row in raw]
    label_kind = "one"
    if kind == "labelled":
        label_kind = "number" if all(isinstance(each.get("label"), float) for each in raw) else "one"
        label_kind = data.labels if data.labels != "auto" else label_kind
    parts: dict[str, list[Any]] = {"train": [], "validation": [], "test": []}
    assert not isinstance(data.validation, str)
    assert not isinstance(data.test, str)
    for number, (source, row) in enumerate(zip(raw, rows, strict=True)):
        stated = str(source.get("split", "")).lower()
        place = uniform("own part", f"{number}")
        part = "test" if place < data.test else "validation" if place < data.test + data.validation else "train"
        if stated:
            part = "train" if stated == "train" else "test" if stated == "test" else "validation"
        parts[part].append(row)
    if not parts["validation"]:
        is_out_of = [uniform("own validation", str(n)) < float(data.validation) for n in range(len(parts["train"]))]
        parts["validation"] = [row for row, is_out in zip(parts["train"], is_out_of, strict=True) if is_out]
        parts["train"] = [row for row, is_out in zip(parts["train"], is_out_of, strict=True) if not is_out]
    for name, part_rows in parts.items():
        if not part_rows:
            raise BadData(f"{Path(data.source)}: the part {name} has no rows; found {len(raw)} in all. Give more rows.")
    return OwnParts(kind, data.fields, parts["train"], parts["validation"], parts["test"], label_kind)


def _guess(row: Mapping[str, Any]) -> str:
    for kind, column in (
        ("messages", "messages"), ("conversations", "conversations"), ("preference", "chosen"), ("tagged", "tags"),
        ("labelled", "label"), ("alpaca", "instruction"), ("prompt-completion", "completion"), ("triplets", "negative"),
        ("pairs", "positive"), ("translation", "target"), ("text", "text"),
    ):  # fmt: skip
        if column in row:
            return kind
    raise BadData(f"data.format: not recognised from the columns {sorted(row)}. Set data.format.")


def _row(kind: str, row: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> Any:
    def get(part: str, default: Any = None) -> Any:
        return row.get(names.get(part, part), default)

    match kind:
        case "labelled":
            label = get("label")
            if settings.data.labels == "number" or (settings.data.labels == "auto" and isinstance(label, float)):
                return LabelledRow(get("text"), get("pair"), (str(label),))
            several = settings.data.labels == "several"
            if isinstance(label, str):
                label = label.split(settings.data.label_separator) if several else [label]
            labels = tuple(str(one) for one in (label if isinstance(label, list) else [label]) if one != "")
            return LabelledRow(get("text"), get("pair"), labels)
        case "tagged":
            return TaggedRow(tuple(get("words")), tuple(get("tags")))
        case "messages":
            return ChatRow(tuple(Turn(m["role"], m["content"]) for m in get("messages")))
        case "conversations":
            roles = {"human": "user", "gpt": "assistant"}
            return ChatRow(tuple(Turn(roles.get(m["from"], str(m["from"])), m["value"]) for m in row["conversations"]))
        case "alpaca":
            question = "\n\n".join(part for part in (get("instruction"), get("input", "")) if part)
            return _chat(question, get("output"))
        case "prompt-completion":
            return _chat(get("prompt"), get("completion"))
        case "preference":
            return PreferenceRow(
                (Turn("user", get("prompt")),),
                (Turn("assistant", get("chosen")),),
                (Turn("assistant", get("rejected")),),
            )
        case "triplets":
            return TripletRow(get("anchor"), get("positive"), get("negative"))
        case "pairs":
            return PairRow(get("anchor"), get("positive"))
        case "translation":
            return TranslationRow(get("source"), get("target"))
        case _:
            return TextRow(get("text"))


def _chat(question: str, answer: str) -> ChatRow:
    return ChatRow((Turn("user", question), Turn("assistant", answer)))
