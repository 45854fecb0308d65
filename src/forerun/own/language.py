"""Plain text and chats for causal language models (`causal-lm`).

Plain text: each document begins with the tokenizer's start and ends with its end token, and every token of it is
predicted once. `padding: fixed` cuts the stream of all documents into rows (a row sees what stands before it in the
row, of another document too); `packed` puts documents side by side in a row, each blind for the others; `bucketed` and
`longest` give each document rows of its own. What is longer than a row goes on in the next, which repeats one token.

Chats go through the tokenizer's chat template, and the loss is that of all answers (`data/chat_tokens.py`). A row that
is too long is cut; a row of which no answer is left is left out, and counted.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.data.chat_tokens import ChatTokens
from forerun.data.own.row_kinds import ChatRow, PreferenceRow, TextRow, texts_of, tools_of
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.forecasting.request import Generated
from forerun.own.facts import TaskFacts
from forerun.own.generated import Answers, generate_answers, generated_judgement
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, watched
from forerun.own.token_scores import SHOWN_TEXTS, TOKEN_SCORES, Untrained, judge_tokens, score_tokens
from forerun.own.tokens import PLAIN_TEMPLATE, ask_as_trained, in_batches, plain_encoder, plain_ids, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, count_entropy

SEPARATORS = ("<|endoftext|>",)
"""Tokens that stand between documents, where a tokenizer has them; else its start and end tokens do."""
Ids = NDArray[np.int32]
CHECKED_ROWS = 16
"""First rows whose special tokens are looked at."""
TOOL_ROWS = 2000
"""First rows that are looked at for descriptions of tools."""
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
    encoder = TextEncoder(tokenizer, settings) if is_text else ChatEncoder(tokenizer, settings, is_chat=parts.has_chats)
    ask_as_trained(tokenizer, encoder.start_id, is_chat=parts.has_chats)
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id, end_ids=encoder.end_ids,
        start_id=encoder.start_id, is_chat=parts.has_chats,
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
        notes = _notes(rows["train"], "training"), _notes(rows["test"], "test")
        texts = [tokenizer.decode(list(sample.ids)) for sample in rows["test"].samples[:SHOWN_TEXTS]]
        judgement = judge_tokens(
            scores, train, held_out["test"].samples, untrained, text_bytes=rows["test"].text_bytes,
            texts=texts, note=" ".join(filter(None, notes)),
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
        assumptions=(*assumptions, *(encoder.unread_tools(parts.train) if isinstance(encoder, ChatEncoder) else ())),
        trivial=TrivialLoss(count_entropy(train.counts), "always answering with the shares of the tokens"),
        generated=Generated(((len(questions), None),)) if questions else Generated(),
        before=untrained.score,
    )


def language_rows(
    rows: StoredRows, encoder: "TextEncoder | ChatEncoder", facts: TaskFacts, settings: Settings
) -> LanguageRows:
    """Samples of a part, on disk, and what was lost on the way."""
    meaning = {"task": facts.model_dump(mode="json"), "padding": settings.batch.padding}
    sides, losses = stored_samples(rows, encoder.tokenizer, meaning, lambda losses: encoder.samples(rows, losses))
    return LanguageRows(
        sides[""], losses.get("text_bytes"), losses.get("cut", 0), losses.get("empty", 0), losses.get("spelled", 0)
    )


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


class ChatEncoder:
    """Chats, and prompts with their completions, to samples."""

    def __init__(self, tokenizer: Any, settings: Settings, *, is_chat: bool = True):
        """`is_chat` is False where prompt and completion are texts that follow each other without a chat template."""
        self.is_chat = is_chat
        if tokenizer.chat_template is None and "<start_of_turn>" not in tokenizer.get_vocab():
            tokenizer.chat_template = PLAIN_TEMPLATE
        self.chat = ChatTokens.around(tokenizer, settings.model.name, tokenizer.pad_token_id)
        self.tokenizer, self.settings = tokenizer, settings
        self.end_ids, self.start_id = self.chat.end_ids, tokenizer.bos_token_id

    def unread_tools(self, rows: Sequence[ChatRow | PreferenceRow]) -> tuple[str, ...]:
        """What a run must say where rows describe tools that the chat template does not write; told by the first."""
        count = sum(bool(row.tools) for row in rows[:TOOL_ROWS])
        if not count or self.chat.reads_tools:
            return ()
        return (
            f"Tools are described in {count:,} of the first {min(len(rows), TOOL_ROWS):,} training rows, and the chat "
            f"template of {self.settings.model.name} does not write them: the model does not learn which tools it has. "
            f"A tokenizer with another chat_template, or a system message, can say them.",
        )

    def samples(self, rows: Iterable[ChatRow], losses: dict[str, Any]) -> Iterator[TokenSample]:
        """Samples of a part, in its order; without those that have no answer within the sequence length.

        Rows that are cut, and those without an answer, are counted in `losses`.
        """
        length = self.settings.batch.sequence_length
        losses |= {"cut": 0, "empty": 0, "spelled": 0}

        def counted() -> Iterator[tuple[ChatRow, int]]:
            for row in rows:
                texts = (*texts_of(row), *tools_of(row)) if self.is_chat else ()
                losses["spelled"] += any(map(self.chat.spelled.are_in, texts))
                yield row, 0

        for number, sample in enumerate(self.whole_samples(counted())):
            if number < CHECKED_ROWS:
                self._require_one_start(sample)
            losses["cut"] += len(sample.ids) > length
            short = cut_sample(sample, length)
            if all(label == IGNORED for label in short.target[1:]):  # type: ignore[index]
                losses["empty"] += 1
                continue
            yield short

    def whole_samples(self, rows: Iterable[tuple[ChatRow, int]]) -> Iterator[TokenSample]:
        """Chats with the message from which on their answers are learned; many are tokenised at once."""
        texts, encode = ((row, self._texts(row, first)) for row, first in rows), plain_encoder(self.tokenizer)
        encode = self.chat.spelled.around(encode) if self.is_chat else encode
        for part in in_batches(texts, lambda both: sum(map(len, both[1]))):
            ids = plain_ids(encode, (text for _, own in part for text in own if text))
            for _, own in part:
                yield self._sample([next(ids).tolist() if text else [] for text in own])

    def sample(self, row: ChatRow, first: int = 0) -> TokenSample:
        """One chat; the loss is that of its answers from message `first` on."""
        return next(self.whole_samples([(row, first)]))

    def _texts(self, row: ChatRow, first: int) -> list[str]:
        """Prompt and answer, in turn."""
        if self.is_chat:
            return self.chat.conversation_texts([turn.message for turn in row.messages], first, _schemas(row))
        return ["".join(turn.content for turn in row.messages[:-1]), row.messages[-1].content]

    def _sample(self, ids: Sequence[Sequence[int]]) -> TokenSample:
        if self.is_chat:
            return self.chat.conversation_sample(ids)
        start = self.tokenizer.bos_token_id
        prompt, answer = [*([] if start is None else [start]), *ids[0]], [*ids[1], self.tokenizer.eos_token_id]
        return TokenSample([*prompt, *answer], [IGNORED] * len(prompt) + answer)

    def prompt(self, row: ChatRow) -> list[int]:
        """Ids up to where the last answer begins."""
        if not self.is_chat:
            return self.chat.continuation_prompt("".join(turn.content for turn in row.messages[:-1]))
        return self.chat.chat_prompt([turn.message for turn in row.messages[:-1]], _schemas(row))

    def answer(self, step: TrainingStep, rows: Sequence[ChatRow]) -> Answers:
        """The model's answers to the last messages of chats, beside theirs."""
        usable = [row for row in rows if len(row.messages) > 1 and row.messages[-1].role == "assistant"]
        room = self.settings.batch.sequence_length
        prompts = [self.prompt(row)[-room:] for row in usable]
        questions = [row.messages[-2].text for row in usable]
        return generate_answers(
            step, self.tokenizer, prompts, questions, [row.messages[-1].text for row in usable],
            end_ids=self.end_ids, pad_id=self.tokenizer.pad_token_id, new_tokens=self.settings.evaluation.new_tokens,
        )  # fmt: skip

    def _require_one_start(self, sample: TokenSample) -> None:
        start = self.tokenizer.bos_token_id
        if start is not None and len(sample.ids) > 1 and sample.ids[0] == sample.ids[1] == start:
            raise InvalidSettings(
                f"model.name: a text begins with one start token; the chat template of {self.settings.model.name} and "
                f"its tokenizer write two ({self.tokenizer.bos_token!r}). Take it out of one of them."
            )


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


def cut_sample(sample: TokenSample, length: int) -> TokenSample:
    """The first `length` tokens of a sample, as arrays."""
    ids, labels = np.asarray(sample.ids[:length], np.int32), np.asarray(sample.target, np.int32)[:length]
    return TokenSample(ids, labels)  # type: ignore[arg-type]


def _schemas(row: ChatRow) -> list[Mapping[str, Any]]:
    return json.loads(row.tools) if row.tools else []


def without_doubles(documents: Iterable[Ids], token: int) -> Iterator[Ids]:
    """Documents in whose stream `token` never follows itself."""
    last = -1
    for document in documents:
        before = np.concatenate([[last], document[:-1]])
        last = int(document[-1])
        yield document[(document != token) | (before != token)]


def _notes(rows: LanguageRows, part: str) -> str:
    """What was lost of a part, in words."""
    losses = [f"{rows.cut} {part} rows are cut"] if rows.cut else []
    losses += [f"{rows.empty} {part} rows have no answer and are left out"] if rows.empty else []
    losses += [f"{rows.spelled} {part} rows say tokens of control, read as text"] if rows.spelled else []
    return f"{', '.join(losses)}." if losses else ""
