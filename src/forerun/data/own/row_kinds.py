"""What training sees of a row: one frozen record for each format, and the texts in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that files and chat templates have for the reasoning of an answer (Qwen3 and DeepSeek; gpt-oss; OpenRouter)."""


def reasoning_of(message: Mapping[str, Any]) -> dict[str, str]:
    """The reasoning of a message by all its names, as chat templates differ in which they read; empty without any."""
    text = next((value for name in REASONING if isinstance(value := message.get(name), str) and value.strip()), "")
    return dict.fromkeys(REASONING, text) if text else {}


def weight_of(message: Mapping[str, Any]) -> dict[str, int]:
    """A weight of 0 where a message says that it is not learned: `weight` of OpenAI, `train` of axolotl."""
    is_left = message.get("weight") == 0 or any(message.get(name) is False for name in ("train", "training"))
    return {"weight": 0} if is_left else {}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str
    more: str = ""
    """JSON of what a chat template reads besides: `tool_calls` and reasoning of an answer, `tool_call_id` and `name` of
    a result; and a `weight` of 0 of an answer that is not learned."""

    @property
    def message(self) -> dict[str, Any]:
        """The message as chat templates read it."""
        return {"role": self.role, "content": self.content, **(json.loads(self.more) if self.more else {})}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls of tools in it, as OpenAI's API has them, but for arguments that are a mapping."""
        return json.loads(self.more).get("tool_calls", []) if self.more else []

    @property
    def reasoning(self) -> str:
        """What an answer thinks before it speaks; empty where that is no field of its own."""
        return json.loads(self.more).get(REASONING[0], "") if self.more else ""

    @property
    def is_learned(self) -> bool:
        """Whether an answer carries loss: not with a weight of 0, as OpenAI's files have."""
        return not self.more or json.loads(self.more).get("weight") != 0

    @property
    def text(self) -> str:
        """All that is said: reasoning, the content, and calls of tools as JSON."""
        calls = (json.dumps(call["function"], ensure_ascii=False) for call in self.calls)
        return "\n".join(filter(None, (self.reasoning, self.content, *calls)))


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
    tools: str = ""
    """JSON of the list of tools that may be called; empty where none are described."""


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
    tools: str = ""
    """JSON of the list of tools that may be called; empty where none are described."""


@dataclass(frozen=True, slots=True)
class UnpairedRow:
    """One answer to a prompt, and whether it is desirable."""

    prompt: tuple[Turn, ...]
    answer: tuple[Turn, ...]
    is_desirable: bool
    is_plain: bool = False
    """Whether prompt and answer are texts that follow each other without a chat template."""
    tools: str = ""
    """JSON of the list of tools that may be called; empty where none are described."""


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


AnsweredRow = ChatRow | PreferenceRow | UnpairedRow
"""Rows of messages, which a chat template writes."""
CanonicalRow = TextRow | LabelledRow | TaggedRow | AnsweredRow | TranslationRow | PairRow | TripletRow


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
            return tuple(turn.text for turn in messages)
        case TranslationRow(source, target):
            return (source, target)
        case PreferenceRow(prompt, better, worse):
            return tuple(turn.text for turn in (*prompt, *better, *worse))
        case UnpairedRow(prompt, answer):
            return tuple(turn.text for turn in (*prompt, *answer))
        case PairRow(anchor, positive):
            return (anchor, positive)
        case TripletRow(anchor, positive, negative):
            return (anchor, positive, negative)


def tools_of(record: CanonicalRow) -> tuple[str, ...]:
    """The tools that a row of messages describes, as JSON: read by the model, and no text of the row's own."""
    return (record.tools,) if isinstance(record, AnsweredRow) and record.tools else ()


def question_texts(record: CanonicalRow) -> tuple[str, ...]:
    """The texts that two rows share when one gives the other away: all but the answer.

    Chats are told apart by what their users say, translations by their sources, pairs and triplets by their anchors.
    """
    match record:
        case ChatRow(messages):
            return tuple(turn.text for turn in messages if turn.role == "user") or texts_of(record)
        case TranslationRow(source):
            return (source,)
        case PreferenceRow(prompt) | UnpairedRow(prompt):
            return tuple(turn.text for turn in prompt) or texts_of(record)
        case PairRow(anchor, positive, score):
            return (anchor,) if score is None else (anchor, positive)
        case TripletRow(anchor):
            return (anchor,)
        case _:
            return texts_of(record)
