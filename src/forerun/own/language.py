"""Plain text and chats for causal language models (`causal-lm`).

Plain text: each document begins with the tokenizer's start and ends with its end token, and every token of it is
predicted once. `padding: fixed` cuts the stream of all documents into rows (a row sees what stands before it in the
row, of another document too); `packed` puts documents side by side in a row, each blind for the others; `bucketed` and
`longest` give each document rows of its own. What is longer than a row goes on in the next, which repeats one token.

Chats: `own/chat_encoder.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.data.chat_tokens import Asks
from forerun.data.own.row_kinds import TextRow, texts_of, tools_of
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import TokenData, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.forecasting.request import Generated
from forerun.own.chat_encoder import CHECKED_ROWS, ChatEncoder
from forerun.own.facts import TaskFacts
from forerun.own.generated import Answers, generated_judgement
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, watched
from forerun.own.token_scores import SHOWN_TEXTS, TOKEN_SCORES, Untrained, judge_tokens, score_tokens
from forerun.own.tokens import ask_as_trained, plain_encoder, plain_ids, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, count_entropy

SEPARATORS = ("<|endoftext|>",)
"""Tokens that stand between documents, where a tokenizer has them; else its start and end tokens do."""
Ids = NDArray[np.int32]
GENERATED_ROWS = 32
"""Test chats that are answered where `evaluation.new_tokens` is set."""


@dataclass(frozen=True)
class LanguageRows:
    """Samples of one part, and what was lost on the way."""

    samples: StoredSamples
    text_bytes: int | None
    """Bytes of UTF-8 that the predicted tokens stand for; None where the loss is not that of whole texts."""
    cut: int = 0
    """Rows that were too long."""
    empty: int = 0
    """Rows without anything to learn."""
    spelled: int = 0
    """Chats that say special tokens of the tokenizer, which are text there."""
    divided: int = 0
    """Chats that are several samples, as the template changes what it has written."""


def open_language(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of texts or chats.

    Raises:
        InvalidSettings: the tokenizer has no end token, or a template writes the start token twice.
        BadData: no row has anything to learn.
    """
    split = parts.split(settings.evaluation)
    is_text = parts.format == "text"
    texts = chain.from_iterable((*texts_of(row), *tools_of(row)) for row in parts.learning_rows)
    tokenizer, assumptions = tokenizer_of(settings, texts, rows=parts.learning_rows.identity, lengths_only=lengths_only)
    encoder, notes = _encoder(settings, parts, tokenizer)
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id, end_ids=encoder.end_ids,
        start_id=encoder.start_id, is_chat=parts.has_chats, asks=encoder.asks,
    )  # fmt: skip
    rows = {part: language_rows(own, encoder, facts, settings) for part, own in split.items()}
    _require_rows(settings, rows)
    held_out = {part: held_out_data(settings, own.samples, facts.pad_id) for part, own in rows.items()}
    train, untrained = rows["train"].samples, Untrained(held_out["test"])
    data = TokenData(settings, train, facts.pad_id)
    questions = list(split["test"][:GENERATED_ROWS]) if settings.evaluation.new_tokens and not is_text else []

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(score_tokens(step, held_out["validation"]).metrics(rows["validation"].text_bytes))

    def judge(step: TrainingStep) -> tuple[Any, Answers | None]:
        scores = score_tokens(step, held_out["test"])
        return scores, encoder.answer(step, questions) if questions and isinstance(encoder, ChatEncoder) else None

    def baselines(answers: tuple[Any, Answers | None]) -> Any:
        scores, generated = answers
        losses = _notes(rows["train"], "training"), _notes(rows["test"], "test")
        texts = [tokenizer.decode(list(sample.ids)) for sample in rows["test"].samples[:SHOWN_TEXTS]]
        judgement = judge_tokens(
            scores, train, held_out["test"].samples, untrained, text_bytes=rows["test"].text_bytes,
            texts=texts, note=" ".join(filter(None, losses)),
        )  # fmt: skip
        return judgement if generated is None else generated_judgement(judgement, generated)

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=data,
        train_size=len(train),
        watched_size=len(rows["validation"].samples),
        test_size=len(rows["test"].samples),
        final_examples=2 * len(rows["test"].samples),
        evaluate=evaluate,
        judge=judge,
        baselines=baselines,
        scores=TOKEN_SCORES,
        assumptions=(*assumptions, *notes, *_divided(rows["train"], len(split["train"]), settings.model.name)),
        trivial=TrivialLoss(count_entropy(train.counts), "always answering with the shares of the tokens"),
        generated=Generated(((len(questions), None),)) if questions else Generated(),
        before=untrained.score,
    )


def _encoder(
    settings: Settings, parts: OwnParts, tokenizer: Any
) -> tuple["TextEncoder | ChatEncoder", tuple[str, ...]]:
    """What makes samples of the rows, and what a run must say of its chat template."""
    notes: tuple[str, ...] = ()
    if parts.format == "text":
        encoder = TextEncoder(tokenizer, settings)
    else:
        encoder = ChatEncoder(tokenizer, settings, is_chat=parts.has_chats)
        encoder.ask_as(parts.train[:CHECKED_ROWS])
        notes = encoder.template_notes(parts.train)
    ask_as_trained(tokenizer, encoder.start_id, is_chat=parts.has_chats)
    return encoder, notes


def language_rows(
    rows: StoredRows, encoder: "TextEncoder | ChatEncoder", facts: TaskFacts, settings: Settings
) -> LanguageRows:
    """Samples of a part, on disk, and what was lost on the way."""
    meaning = {"task": facts.model_dump(mode="json"), "padding": settings.batch.padding}
    sides, losses = stored_samples(rows, encoder.tokenizer, meaning, lambda losses: encoder.samples(rows, losses))
    return LanguageRows(
        sides[""], losses.get("text_bytes"),
        *(losses.get(name, 0) for name in ("cut", "empty", "spelled", "divided")),
    )  # fmt: skip


def _require_rows(settings: Settings, rows: Mapping[str, LanguageRows]) -> None:
    for part, own in rows.items():
        if not own.samples:
            raise BadData(
                f"{settings.data.source}: the part {part} needs rows with an answer that fits into batch."
                f"sequence_length={settings.batch.sequence_length} tokens; found none, {own.empty} rows are too long. "
                f"Raise it."
            )


class TextEncoder:
    """Documents to samples."""

    asks: Asks = "own"

    def __init__(self, tokenizer: Any, settings: Settings):
        self.tokenizer, self.settings = tokenizer, settings
        vocabulary = tokenizer.get_vocab()
        separator = next((vocabulary[token] for token in SEPARATORS if token in vocabulary), None)
        end = separator if separator is not None else tokenizer.eos_token_id
        if end is None:
            raise InvalidSettings(
                f"model.name: a text needs an end, which the tokenizer of {settings.model.name} has no token for "
                f"(eos_token). Save its tokenizer with one in a local directory."
            )
        start = separator if separator is not None else tokenizer.bos_token_id
        self.start_id = end if start is None else start
        self.end_ids: tuple[int, ...] = (end,)

    def samples(self, rows: Iterable[TextRow], losses: dict[str, Any]) -> Iterator[TokenSample]:
        """Samples of a part, in its order; the bytes of its texts are written down in `losses`."""
        length = self.settings.batch.sequence_length
        losses["text_bytes"] = 0

        def texts() -> Iterator[str]:
            for row in rows:
                losses["text_bytes"] += len(row.text.encode())
                yield row.text

        documents = self._documents(texts())
        if self.settings.batch.padding == "fixed":
            is_shared = self.start_id == self.end_ids[0]  # the end of one is the start of the next
            parts = pieces_of_stream(without_doubles(documents, self.start_id) if is_shared else documents, length)
        else:
            parts = (part for document in documents for part in pieces(document, length))
        for part in parts:
            yield TokenSample(part)  # type: ignore[arg-type]

    def _documents(self, texts: Iterable[str]) -> Iterator[Ids]:
        start, end = np.asarray([self.start_id], np.int32), np.asarray(self.end_ids, np.int32)
        for ids in plain_ids(plain_encoder(self.tokenizer), texts):
            yield np.concatenate([start, ids, end])


def pieces(ids: Ids, length: int) -> Iterator[Ids]:
    """Runs of at most `length` ids; each repeats the last of the one before, so that every id but the first has one
    before it."""
    for first in range(0, max(1, len(ids) - 1), length - 1):
        yield ids[first : first + length]


def pieces_of_stream(documents: Iterable[Ids], length: int) -> Iterator[Ids]:
    """`pieces` of all documents as one, of which only what is left of the last piece is in memory."""
    rest = np.zeros(0, dtype=np.int32)
    is_first = True
    for document in documents:
        rest = np.concatenate([rest, document])
        while len(rest) > length:
            yield rest[:length]
            rest, is_first = rest[length - 1 :], False
    if is_first or len(rest) > 1:  # one id alone is the last of the piece before
        yield rest


def without_doubles(documents: Iterable[Ids], token: int) -> Iterator[Ids]:
    """Documents in whose stream `token` never follows itself."""
    last = -1
    for document in documents:
        before = np.concatenate([[last], document[:-1]])
        last = int(document[-1])
        yield document[(document != token) | (before != token)]


def _divided(rows: LanguageRows, chats: int, model: str) -> tuple[str, ...]:
    """What a run must say where chats are several samples."""
    if not rows.divided:
        return ()
    return (
        f"{rows.divided:,} of {chats:,} training chats are several rows, {len(rows.samples):,} in all: the chat "
        f"template of {model} changes what it has written when a message comes, so each answer is trained behind what "
        f"stands before it by then. That is more tokens than the chats have; a template that only adds needs one row "
        f"a chat.",
    )


def _notes(rows: LanguageRows, part: str) -> str:
    """What was lost of a part, in words."""
    losses = [f"{rows.cut} {part} rows are cut"] if rows.cut else []
    losses += [f"{rows.empty} {part} rows have no answer and are left out"] if rows.empty else []
    losses += [f"{rows.spelled} {part} rows say tokens of control, read as text"] if rows.spelled else []
    return f"{', '.join(losses)}." if losses else ""
