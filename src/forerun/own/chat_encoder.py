"""Chats, and prompts with their completions, to samples: for `causal-lm` and `preference`.

Chats go through the tokenizer's chat template, and the loss is that of all answers (`data/chat_tokens.py`). A row that
is too long is cut; a row of which no answer is left is left out, and counted. A chat that the template writes anew as
it grows (Qwen3's own drops the reasoning of earlier answers) is several rows, each with what stands before its answers
by then; a run says how many.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.data.chat_tokens import ASKS, Asks, ChatTokens
from forerun.data.own.row_kinds import AnsweredRow, ChatRow, PreferenceRow, Turn, texts_of, tools_of
from forerun.data.token_data import IGNORED, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.own.generated import Answers, generate_answers
from forerun.own.tokens import PLAIN_TEMPLATE, in_batches, plain_encoder, plain_ids
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep

CHECKED_ROWS = 16
"""First rows whose special tokens are looked at, and which say how the model is asked."""
TOOL_ROWS = 2000
"""First rows that are looked at for descriptions of tools."""


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

    def unread_tools(self, rows: Sequence[AnsweredRow]) -> tuple[str, ...]:
        """What a run must say where rows describe tools that the chat template does not write; told by the first."""
        count = sum(bool(row.tools) for row in rows[:TOOL_ROWS])
        if not count or self.chat.reads_tools:
            return ()
        return (
            f"Tools are described in {count:,} of the first {min(len(rows), TOOL_ROWS):,} training rows, and the chat "
            f"template of {self.settings.model.name} does not write them: the model does not learn which tools it has. "
            f"A tokenizer with another chat_template, or a system message, can say them.",
        )

    @property
    def asks(self) -> Asks:
        """What stands before an answer that the model is to write."""
        return self.chat.asks

    def ask_as(self, rows: Sequence[AnsweredRow]) -> None:
        """Ask for answers with the prompt that the template writes before most of the answers in `rows`.

        Raises:
            BadData: the template cannot render one of them.
        """
        if not self.is_chat:
            return
        chats = [(_turns(row), row) for row in rows]
        ways = [
            self.chat.asks_before([turn.message for turn in turns], _schemas(row))
            for turns, row in chats
            if turns[-1].role == "assistant"
        ]
        if any(ways):
            self.chat = replace(self.chat, asks=max(ASKS, key=ways.count))

    def template_notes(self, rows: Sequence[AnsweredRow]) -> tuple[str, ...]:
        """What a run must say of the chat template and these training rows."""
        return (*self.unread_tools(rows), *self.unread_reasoning(rows), *self.other_prompt())

    def unread_reasoning(self, rows: Sequence[AnsweredRow]) -> tuple[str, ...]:
        """What a run must say where answers have reasoning that the chat template does not write."""
        count = sum(any(turn.reasoning for turn in _turns(row)) for row in rows[:TOOL_ROWS])
        if not count or (self.is_chat and self.chat.reads_reasoning):
            return ()
        return (
            f"Answers of {count:,} of the first {min(len(rows), TOOL_ROWS):,} training rows have reasoning, and the "
            f"chat template of {self.settings.model.name} does not write it: it is not learned. Write it into the "
            f"content, or take a model that reasons.",
        )

    def other_prompt(self) -> tuple[str, ...]:
        """What a run must say where answers do not stand behind the template's own generation prompt."""
        name = self.settings.model.name
        if self.asks == "quiet":
            return (
                f"The answers have no reasoning, and the chat template of {name} asks for some: they are trained, and "
                f"asked for by predict, chat and serve, with reasoning off. Elsewhere pass enable_thinking=False.",
            )
        if self.asks == "bare":
            return (
                f"The chat template of {name} ends a question in {self.chat.unanswered.strip()!r}, which it does not "
                f"write before the answers of the data: they are trained, and asked for by predict, chat and serve, "
                f"without it.",
            )
        return ()

    def samples(self, rows: Iterable[ChatRow], losses: dict[str, Any]) -> Iterator[TokenSample]:
        """Samples of a part, in its order; without those that have no answer within the sequence length.

        Rows that are cut, and those without an answer, are counted in `losses`.
        """
        length = self.settings.batch.sequence_length
        losses |= {"cut": 0, "empty": 0, "spelled": 0, "divided": 0}

        def counted() -> Iterator[tuple[ChatRow, int]]:
            for row in rows:
                texts = (*texts_of(row), *tools_of(row)) if self.is_chat else ()
                losses["spelled"] += any(map(self.chat.spelled.are_in, texts))
                yield row, 0

        for number, samples in enumerate(self.whole_samples(counted())):
            losses["divided"] += len(samples) > 1
            for sample in samples:
                if number < CHECKED_ROWS:
                    self._require_one_start(sample)
                losses["cut"] += len(sample.ids) > length
                short = cut_sample(sample, length)
                if all(label == IGNORED for label in short.target[1:]):  # type: ignore[index]
                    losses["empty"] += 1
                    continue
                yield short

    def whole_samples(self, rows: Iterable[tuple[ChatRow, int]]) -> Iterator[list[TokenSample]]:
        """The samples of each chat with the message from which on its answers are learned: one, or several where the
        template changes what it has written. Many are tokenised at once."""
        texts, encode = (self._texts(row, first) for row, first in rows), plain_encoder(self.tokenizer)
        encode = self.chat.spelled.around(encode) if self.is_chat else encode
        for part in in_batches(texts, lambda samples: sum(len(text) for own in samples for text in own)):
            ids = plain_ids(encode, (text for samples in part for own in samples for text in own if text))
            for samples in part:
                yield [self._sample([next(ids).tolist() if text else [] for text in own]) for own in samples]

    def sample(self, row: ChatRow, first: int = 0) -> TokenSample:
        """One chat; the loss is that of its answers from message `first` on.

        Raises:
            BadData: as `one_sample`.
        """
        return one_sample(next(self.whole_samples([(row, first)])))

    def _texts(self, row: ChatRow, first: int) -> list[list[str]]:
        """Prompt and answer, in turn, of each sample."""
        if self.is_chat:
            rows = self.chat.conversation_rows([turn.message for turn in row.messages], first, _schemas(row))
            are_learned = [turn.is_learned for turn in row.messages[first:] if turn.role == "assistant"]
            return rows if all(are_learned) else _learned_alone(rows, iter(are_learned))
        return [["".join(turn.content for turn in row.messages[:-1]), row.messages[-1].content]]

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


def one_sample(samples: Sequence[TokenSample]) -> TokenSample:
    """The sample of a chat.

    Raises:
        BadData: it is several.
    """
    if len(samples) != 1:
        raise BadData(
            f"chat: an answer of a preference is one row; found one that the chat template writes anew "
            f"{len(samples) - 1} times, as it has several turns of the assistant. Put all but the last of them into "
            f"the prompt, or give a tokenizer with another chat_template."
        )
    return samples[0]


def _learned_alone(rows: Sequence[Sequence[str]], are_learned: Iterator[bool]) -> list[list[str]]:
    """Prompts and answers in turn, where answers that are not learned are part of the next prompt."""
    alone = []
    for row in rows:
        pieces, before = [], ""
        for prompt, answer in zip(row[::2], row[1::2], strict=True):
            if next(are_learned):
                pieces, before = [*pieces, before + prompt, answer], ""
            else:
                before += prompt + answer
        alone.append(pieces or [before, ""])
    return alone


def cut_sample(sample: TokenSample, length: int) -> TokenSample:
    """The first `length` tokens of a sample, as arrays."""
    ids, labels = np.asarray(sample.ids[:length], np.int32), np.asarray(sample.target, np.int32)[:length]
    return TokenSample(ids, labels)  # type: ignore[arg-type]


def _turns(row: AnsweredRow) -> tuple[Turn, ...]:
    """The messages of a chat, of a preference with the better answer."""
    if isinstance(row, ChatRow):
        return row.messages
    return (*row.prompt, *(row.better if isinstance(row, PreferenceRow) else row.answer))


def _schemas(row: AnsweredRow) -> list[Mapping[str, Any]]:
    return json.loads(row.tools) if row.tools else []
