"""Rows of which two answers are read side by side, each behind a prompt: those of a preference, or a mismatched one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from forerun.data.own.row_kinds import ChatRow, texts_of, tools_of
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import IGNORED, TokenSample
from forerun.errors import BadData
from forerun.own.chat_encoder import CHECKED_ROWS, ChatEncoder, cut_sample, one_sample
from forerun.own.facts import TaskFacts
from forerun.own.parts import OwnParts
from forerun.own.stores import stored_samples
from forerun.own.tokens import ask_as_trained, tokenizer_of
from forerun.settings.schema import Settings

Sides = dict[str, StoredSamples]


@dataclass(frozen=True)
class AnswerEncoding:
    """How prompts and answers of a run become tokens."""

    tokenizer: Any
    encoder: ChatEncoder
    facts: TaskFacts
    assumptions: tuple[str, ...]
    """What a forecast must say of the data."""


def encode_answers(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> AnswerEncoding:
    """The encoding of a run whose reference is the untrained model.

    Raises:
        BadData, InvalidSettings: as `tokenizer_of` and `ChatEncoder.ask_as`.
    """
    texts = (text for row in parts.learning_rows for text in (*texts_of(row), *tools_of(row)))
    tokenizer, assumptions = tokenizer_of(settings, texts, rows=parts.learning_rows.identity, lengths_only=lengths_only)
    encoder = ChatEncoder(tokenizer, settings, is_chat=parts.has_chats)
    encoder.ask_as(parts.train[:CHECKED_ROWS])
    ask_as_trained(tokenizer, encoder.start_id, is_chat=parts.has_chats)
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id, end_ids=encoder.end_ids,
        start_id=encoder.start_id, is_chat=parts.has_chats, asks=encoder.asks,
    )  # fmt: skip
    pass_of_reference = "The reference's pass over all rows, once before training, is not in this forecast."
    assumptions = (*assumptions, *encoder.template_notes(parts.train), pass_of_reference)
    return AnswerEncoding(tokenizer, encoder, facts, assumptions)


def two_sided_samples(
    rows: StoredRows,
    chats: Iterable[tuple[ChatRow, int]],
    beside: str,
    encoding: AnswerEncoding,
    settings: Settings,
) -> tuple[Sides, StoredRows]:
    """Samples of two chats a row, the second ones' side called `beside`, and the rows that have room for both answers.

    `chats` are those of all rows in turn, each with the message from which on its answers are learned.

    Raises:
        BadData: no row has room.
    """
    length = settings.batch.sequence_length

    def samples(losses: dict[str, Any]) -> Iterator[TokenSample]:
        losses["places"] = []
        wholes = map(one_sample, encoding.encoder.whole_samples(chats))
        for number, both in enumerate(zip(wholes, wholes, strict=True)):
            cut = [cut_sample(sample, length) for sample in both]
            if all(any(label != IGNORED for label in sample.target[1:]) for sample in cut):  # type: ignore[index]
                losses["places"].append(number)
                yield from cut

    stored, losses = stored_samples(rows, encoding.tokenizer, {"task": encoding.facts.model_dump(mode="json")}, samples)
    if not losses["places"]:
        raise BadData(
            f"{settings.data.source}: preference needs rows whose answers begin within batch.sequence_length={length} "
            f"tokens; found none in {len(rows)}. Raise it."
        )
    return {"": stored[""][::2], beside: stored[""][1::2]}, rows.at(rows.places[losses["places"]])
