"""Plain text and chats for causal language models (`causal-lm`).

Plain text: each document begins with the tokenizer's start and ends with its end token, and every token of it is
predicted once. `padding: fixed` cuts the stream of all documents into rows (a row sees what stands before it in the
row, of another document too); `packed` puts documents side by side in a row, each blind for the others; `bucketed` and
`longest` give each document rows of its own. What is longer than a row goes on in the next, which repeats one token.

Chats go through the tokenizer's chat template, and the loss is that of all answers (`data/chat_tokens.py`). A row that
is too long is cut; a row of which no answer is left is left out, and counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from forerun.data.chat_tokens import ChatTokens, Message
from forerun.data.own.row_kinds import ChatRow, TextRow, Turn, texts_of
from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.forecasting.request import Generated
from forerun.own.facts import TaskFacts
from forerun.own.generated import Answers, generate_answers, generated_judgement
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.task import Task, first_rows, watched
from forerun.own.token_scores import TOKEN_SCORES, Untrained, judge_tokens, score_tokens
from forerun.own.tokens import PLAIN_TEMPLATE, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, label_entropy

SEPARATORS = ("<|endoftext|>",)
"""Tokens that stand between documents, where a tokenizer has them; else its start and end tokens do."""
CHECKED_ROWS = 16
"""First rows whose special tokens are looked at."""
GENERATED_ROWS = 32
"""Test chats that are answered where `evaluation.new_tokens` is set."""


@dataclass(frozen=True)
class LanguageRows:
    """Samples of one part, and what was lost on the way."""

    samples: list[TokenSample]
    text_bytes: int | None
    """Bytes of UTF-8 that the predicted tokens stand for; None where the loss is not that of whole texts."""
    cut: int = 0
    """Rows that were too long."""
    empty: int = 0
    """Rows without anything to learn."""


def open_language(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of texts or chats.

    Raises:
        InvalidSettings: the tokenizer has no end token, or a template writes the start token twice.
        BadData: no row has anything to learn.
    """
    split = {"train": parts.train, "validation": first_rows(parts.validation, settings.evaluation.examples)}
    split["test"] = parts.test
    is_text = parts.format == "text"
    texts = chain.from_iterable(texts_of(row) for row in parts.train)
    tokenizer, assumptions = tokenizer_of(settings, texts, lengths_only=lengths_only)
    encoder = TextEncoder(tokenizer, settings) if is_text else ChatEncoder(tokenizer, settings)
    rows = {part: encoder.rows(own) for part, own in split.items()}
    for part, own in rows.items():
        if not own.samples:
            raise BadData(
                f"{settings.data.source}: the part {part} needs rows with an answer that fits into batch."
                f"sequence_length={settings.batch.sequence_length} tokens; found none in {len(split[part])}. Raise it."
            )
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id, end_ids=encoder.end_ids,
        start_id=encoder.start_id, is_chat=not is_text,
    )  # fmt: skip
    held_out = {
        part: held_out_data(settings, rows[part].samples, facts.pad_id) for part in ("validation", "test")
    }  # fmt: skip
    data = TokenData(settings, rows["train"].samples, facts.pad_id)
    untrained = Untrained(held_out["test"])
    asked = [] if is_text or not settings.evaluation.new_tokens else list(split["test"][:GENERATED_ROWS])

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(score_tokens(step, held_out["validation"]).metrics(rows["validation"].text_bytes))

    def judge(step: TrainingStep) -> tuple[Any, Answers | None]:
        scores = score_tokens(step, held_out["test"])
        return scores, encoder.answer(step, asked) if asked and isinstance(encoder, ChatEncoder) else None

    def baselines(answers: tuple[Any, Answers | None]) -> Any:
        scores, generated = answers
        notes = _notes(rows["train"], "training"), _notes(rows["test"], "test")
        texts = [tokenizer.decode(list(sample.ids)) for sample in rows["test"].samples[:2000]]
        judgement = judge_tokens(
            scores, data.samples, held_out["test"].samples, untrained, text_bytes=rows["test"].text_bytes,
            texts=texts, note=" ".join(filter(None, notes)),
        )  # fmt: skip
        return judgement if generated is None else generated_judgement(judgement, generated)

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=data,
        train_size=len(data.samples),
        watched_size=len(rows["validation"].samples),
        final_examples=2 * len(rows["test"].samples),
        evaluate=evaluate,
        judge=judge,
        baselines=baselines,
        scores=TOKEN_SCORES,
        assumptions=assumptions,
        trivial=TrivialLoss(label_entropy(data.valid_labels()), "always answering with the shares of the tokens"),
        generated=Generated(((len(asked), None),)) if asked else Generated(),
        before=untrained.score,
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

    def rows(self, rows: Sequence[TextRow]) -> LanguageRows:
        """Samples of a part, in its order."""
        length = self.settings.batch.sequence_length
        documents = self._documents(rows)
        if self.settings.batch.padding == "fixed":
            stream = list(chain.from_iterable(documents))
            if self.start_id == self.end_ids[0]:  # the end of one is the start of the next
                stream = _without_doubles(stream, self.start_id)
            documents = iter([stream])
        samples = [TokenSample(np.asarray(p, dtype=np.int32)) for d in documents for p in pieces(d, length)]  # type: ignore[arg-type]
        return LanguageRows(samples, sum(len(row.text.encode()) for row in rows))

    def _documents(self, rows: Sequence[TextRow]) -> Iterator[list[int]]:
        for row in rows:
            ids = self.tokenizer(row.text, add_special_tokens=False, verbose=False)["input_ids"]
            yield [self.start_id, *ids, *self.end_ids]


class ChatEncoder:
    """Chats, and prompts with their completions, to samples."""

    def __init__(self, tokenizer: Any, settings: Settings):
        if tokenizer.chat_template is None and "<start_of_turn>" not in tokenizer.get_vocab():
            tokenizer.chat_template = PLAIN_TEMPLATE
        self.chat = ChatTokens.around(tokenizer, settings.model.name, tokenizer.pad_token_id)
        self.tokenizer, self.settings = tokenizer, settings
        self.end_ids, self.start_id = self.chat.end_ids, tokenizer.bos_token_id

    def rows(self, rows: Sequence[ChatRow]) -> LanguageRows:
        """Samples of a part, in its order; without those that have no answer within the sequence length."""
        length = self.settings.batch.sequence_length
        samples: list[TokenSample] = []
        cut = empty = 0
        for number, row in enumerate(rows):
            sample = self.sample(row)
            if number < CHECKED_ROWS:
                self._require_one_start(sample)
            cut += len(sample.ids) > length
            short = cut_sample(sample, length)
            if all(label == IGNORED for label in short.target[1:]):  # type: ignore[index]
                empty += 1
                continue
            samples.append(short)
        return LanguageRows(samples, None, cut, empty)

    def sample(self, row: ChatRow, first: int = 0) -> TokenSample:
        """One chat; the loss is that of its answers from message `first` on."""
        if not row.is_plain:
            return self.chat.conversation([_message(turn) for turn in row.messages], first)
        prompt = self.chat.continuation_prompt("".join(turn.content for turn in row.messages[:-1]))
        answer = self.tokenizer(row.messages[-1].content, add_special_tokens=False)["input_ids"]
        answer = [*answer, self.tokenizer.eos_token_id]
        return TokenSample(prompt + answer, [IGNORED] * len(prompt) + answer)

    def prompt(self, row: ChatRow) -> list[int]:
        """Ids up to where the last answer begins."""
        if row.is_plain:
            return self.chat.continuation_prompt("".join(turn.content for turn in row.messages[:-1]))
        return self.chat.chat_prompt([_message(turn) for turn in row.messages[:-1]])

    def answer(self, step: TrainingStep, rows: Sequence[ChatRow]) -> Answers:
        """The model's answers to the last messages of chats, beside theirs."""
        usable = [row for row in rows if len(row.messages) > 1 and row.messages[-1].role == "assistant"]
        room = self.settings.batch.sequence_length
        prompts = [self.prompt(row)[-room:] for row in usable]
        questions = [row.messages[-2].content for row in usable]
        return generate_answers(
            step, self.tokenizer, prompts, questions, [row.messages[-1].content for row in usable],
            end_ids=self.end_ids, pad_id=self.tokenizer.pad_token_id, new_tokens=self.settings.evaluation.new_tokens,
        )  # fmt: skip

    def _require_one_start(self, sample: TokenSample) -> None:
        start = self.tokenizer.bos_token_id
        if start is not None and len(sample.ids) > 1 and sample.ids[0] == sample.ids[1] == start:
            raise InvalidSettings(
                f"model.name: a text begins with one start token; the chat template of {self.settings.model.name} and "
                f"its tokenizer write two ({self.tokenizer.bos_token!r}). Take it out of one of them."
            )


def pieces(ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Runs of at most `length` ids; each repeats the last of the one before, so that every id but the first has one
    before it."""
    for first in range(0, max(1, len(ids) - 1), length - 1):
        yield ids[first : first + length]


def cut_sample(sample: TokenSample, length: int) -> TokenSample:
    """The first `length` tokens of a sample, as arrays."""
    ids, labels = np.asarray(sample.ids[:length], np.int32), np.asarray(sample.target, np.int32)[:length]
    return TokenSample(ids, labels)  # type: ignore[arg-type]


def _message(turn: Turn) -> Message:
    return {"role": turn.role, "content": turn.content}


def _without_doubles(stream: Iterable[int], token: int) -> list[int]:
    """A stream in which `token` never follows itself."""
    result: list[int] = []
    for each in stream:
        if each != token or not result or result[-1] != token:
            result.append(each)
    return result


def _notes(rows: LanguageRows, part: str) -> str:
    """What was lost of a part, in words."""
    losses = [f"{rows.cut} {part} rows are cut"] if rows.cut else []
    losses += [f"{rows.empty} {part} rows have no answer and are left out"] if rows.empty else []
    return f"{', '.join(losses)}." if losses else ""
