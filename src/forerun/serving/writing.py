"""Text from a trained language model, piece by piece: what a chat window, a terminal and an HTTP client read.

One text at a time: a model on one device has one set of weights in use, so `Writer` holds a lock, and whoever waits
can give up. Pieces are whole characters, whatever the tokens are cut into. Decoding stops at the tokenizer's end, at
what its chat template puts after an answer, at a stop text, or after `new_tokens`.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn
from transformers import StoppingCriteria, StoppingCriteriaList

from forerun.data.chat_tokens import Asks, ChatTokens, Message, Tools, fault_words
from forerun.errors import BadData, InvalidSettings
from forerun.evaluate.generate import Decoding, generate, sampled
from forerun.models.build import maximum_length
from forerun.own.trained import TrainedModel
from forerun.serving.channels import Channels, channels_of
from forerun.serving.pieces import PieceStreamer
from forerun.serving.tool_answers import ToolAnswers

WRITES = ("causal-lm", "seq2seq-lm", "preference")
"""Workloads whose models write text."""
ROWS_AT_ONCE = 16
"""Texts that are written together where nobody reads along."""
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How a text is continued."""

    new_tokens: int = 256
    """At most so many tokens."""
    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    """Tokens that together have this probability are drawn from."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    seed: int | None = None
    """Fixes the draws, for one machine and version."""
    shows_special: bool = False
    """Whether special tokens are part of the text, as calls of tools may hold them."""


@dataclass
class Writing:
    """One text while it is written; iterate over it once, then read the figures."""

    prompt_tokens: int
    pieces: Iterator[str]
    new_tokens: int = 0
    finish_reason: FinishReason = "stop"
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def __iter__(self) -> Iterator[str]:
        """The text, in pieces."""
        return self.pieces

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody reads on."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop after the token that is being computed."""
        self._cancelled.set()


class Writer:
    """A language model that continues texts and, where its tokenizer has a chat template, answers messages."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, name: str, *, is_chat: bool = True, start_id: int | None = None,
        end_ids: Sequence[int] = (), asks: Asks = "own",
    ):  # fmt: skip
        """`is_chat` is False for a model that was trained on plain text, whatever its tokenizer has; such texts begin
        with `start_id` (None: the tokenizer's) and end in one of `end_ids` or the tokenizer's end; `asks` is what stood
        before the answers of a chat."""
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.is_chat = is_chat and bool(getattr(tokenizer, "chat_template", None))
        self.is_two_sided = bool(getattr(model.config, "is_encoder_decoder", False))
        self.start_id = tokenizer.bos_token_id if start_id is None else start_id
        ends = (*end_ids, *((tokenizer.eos_token_id,) if tokenizer.eos_token_id is not None else ()))
        self.chat = replace(ChatTokens.around(tokenizer, name), asks=asks) if self.is_chat else None
        ends = (*(() if self.chat is None else self.chat.end_ids), *ends)
        self.end_ids = ends = tuple(dict.fromkeys(ends))
        pad = tokenizer.pad_token_id
        self.pad_id = pad if pad is not None else ends[0] if ends else 0
        self._lock = threading.Lock()

    @cached_property
    def tool_answers(self) -> ToolAnswers:
        """How calls of tools are read in what it writes."""
        if self.chat is None:
            return ToolAnswers()
        return ToolAnswers(self.chat.call_grammar, self.chat.spelled, self.channels)

    @cached_property
    def channels(self) -> Channels | None:
        """Where the answer is in what it writes, if special tokens say so."""
        return None if self.chat is None else channels_of(self.chat)

    @property
    def longest(self) -> int | None:
        """Tokens of prompt and answer together that the model has positions for; None where it has no limit."""
        return None if self.is_two_sided else maximum_length(self.model.config)

    def chat_ids(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """Ids of a conversation with the tools that may be called, up to where the next answer begins.

        Raises:
            InvalidSettings: the model has no chat template, or the template refuses these messages, or it leaves
                tools or calls of them out.
        """
        if tools and self.chat is not None and not self.chat.reads_tools:
            raise InvalidSettings(
                f"tools: the chat template of {self.name} writes none, so the model would not know them. Say them in a "
                f"system message, as its training rows did, or leave tools out."
            )
        if self.chat is None:
            raise InvalidSettings(
                f"messages: {self.name} was not trained on chats, so its tokenizer has no chat template. Send a text "
                f"to continue (/v1/completions, forerun generate), or train on chats."
            )
        try:
            return self.chat.chat_prompt(messages, tools)  # nobody ends his turn by writing the token that does
        except BadData as error:
            if not isinstance(error.__cause__, Exception):  # it leaves calls of tools out
                raise InvalidSettings(f"messages: {self.name}: {error}") from error
            raise InvalidSettings(
                f"messages: the chat template of {self.name} refuses them: {fault_words(error.__cause__)}. Send roles "
                f"in the order that it wants, as a rule system, user, assistant, user."
            ) from error

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text to continue; of an empty one, the token that texts begin with.

        Raises:
            InvalidSettings: there is nothing to begin with.
        """
        if self.is_two_sided:
            return self.tokenizer(text)["input_ids"]
        start = [] if self.start_id is None else [self.start_id]
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = ids if start and ids[:1] == start else start + ids
        if not ids and self.end_ids:  # GPT-2 begins texts with the token that ends them
            ids = [self.end_ids[0]]
        if not ids:
            raise InvalidSettings("prompt: must hold some text; found none, and the tokenizer has no start token.")
        return ids

    def write(self, ids: Sequence[int], sampling: Sampling) -> Writing:
        """Begin to continue `ids`; the text comes while it is computed.

        Raises:
            InvalidSettings: prompt and answer are longer than the model.
        """
        self._require_room(len(ids), sampling.new_tokens)
        writing = Writing(prompt_tokens=len(ids), pieces=iter(()))
        writing.pieces = self._pieces(writing, list(ids), sampling)
        return writing

    def write_all(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[str]:
        """The whole texts that continue `prompts`, many at a time.

        Raises:
            InvalidSettings: a prompt and its answer are longer than the model.
        """
        for ids in prompts:
            self._require_room(len(ids), sampling.new_tokens)
        decoding = Decoding(
            sampling.new_tokens, self.end_ids, self.pad_id, temperature=sampling.temperature, top_p=sampling.top_p
        )
        with self._lock, torch.random.fork_rng(enabled=sampling.seed is not None):
            if sampling.seed is not None:
                torch.manual_seed(sampling.seed)
            rows = generate(self.model, prompts, decoding, batch_size=ROWS_AT_ONCE)
        channels = self.channels
        texts = [self.tokenizer.decode(row, skip_special_tokens=channels is None) for row in rows]
        texts = texts if channels is None else [channels.content(text) for text in texts]
        return ["".join(_until_stop(iter([text]), sampling.stop, None)) for text in texts]

    def _require_room(self, prompt: int, new_tokens: int) -> None:
        limit = self.longest
        if limit is not None and prompt + new_tokens > limit:
            room = limit - prompt
            ways = f"Shorten the prompt, or ask for {room:,} tokens or fewer" if room > 0 else "Shorten the prompt"
            raise InvalidSettings(
                f"prompt: {self.name} reads and writes {limit:,} tokens together; found {prompt:,} of the prompt and "
                f"{new_tokens:,} of the answer. {ways}."
            )

    def _pieces(self, writing: Writing, ids: list[int], sampling: Sampling) -> Iterator[str]:
        channels = None if sampling.shows_special else self.channels
        is_raw = sampling.shows_special or channels is not None
        streamer = PieceStreamer(self.tokenizer, skip_prompt=not self.is_two_sided, skip_special_tokens=not is_raw)
        failure: list[BaseException] = []
        thread = threading.Thread(target=self._generate, args=(writing, ids, sampling, streamer, failure), daemon=True)
        thread.start()
        is_whole = False
        try:
            pieces = streamer if channels is None else channels.answer_pieces(streamer)
            yield from _until_stop(pieces, sampling.stop, writing)
            is_whole = True
        finally:
            if not is_whole:  # whoever read has gone
                writing.cancel()
            thread.join()
            if writing.is_cancelled:  # a model may be done with all its tokens before a stop text is read
                writing.finish_reason = "stop"
        if failure:
            raise failure[0]

    def _generate(
        self, writing: Writing, ids: list[int], sampling: Sampling, streamer: Any, failure: list[BaseException]
    ) -> None:
        """In a thread of its own: the model's `generate`, which hands each piece to `streamer`."""
        device = next(self.model.parameters()).device
        is_random = sampling.temperature > 0
        choices = sampled(sampling.temperature, sampling.top_p) if is_random else {}
        try:
            with self._lock, torch.inference_mode(), torch.random.fork_rng(enabled=sampling.seed is not None):
                if sampling.seed is not None:
                    torch.manual_seed(sampling.seed)
                tensor = torch.tensor([ids], device=device)
                result = self.model.generate(  # type: ignore[operator]
                    input_ids=tensor, attention_mask=torch.ones_like(tensor), max_new_tokens=sampling.new_tokens,
                    do_sample=is_random, eos_token_id=list(self.end_ids) or None, pad_token_id=self.pad_id,
                    use_cache=True, streamer=streamer,
                    stopping_criteria=StoppingCriteriaList([_WhenCancelled(writing)]), **choices,
                )  # fmt: skip
            new = result[0].tolist()[1 if self.is_two_sided else len(ids) :]
            writing.new_tokens = len(new)
            is_full = len(new) >= sampling.new_tokens and not (new and new[-1] in self.end_ids)
            if is_full and not writing.is_cancelled:
                writing.finish_reason = "length"
        except (RuntimeError, ValueError, IndexError) as error:  # the reader of the pieces is told
            failure.append(error)
        finally:
            streamer.end()


def writer_of(trained: TrainedModel, name: str) -> Writer:
    """A writer that asks a trained model in the form that its rows had."""
    facts = trained.facts
    return Writer(
        trained.model, trained.tokenizer, name, is_chat=facts.is_chat, start_id=facts.start_id, end_ids=facts.end_ids,
        asks=facts.asks,
    )  # fmt: skip


class _WhenCancelled(StoppingCriteria):
    """Ends generation when nobody reads it any more."""

    def __init__(self, writing: Writing):
        self.writing = writing

    def __call__(self, input_ids: Any, scores: Any, **rest: Any) -> Any:
        """One answer a row."""
        return torch.full((len(input_ids),), self.writing.is_cancelled, device=input_ids.device)


def _until_stop(pieces: Iterator[str], stops: Sequence[str], writing: Writing | None) -> Iterator[str]:
    """Pieces up to the first stop text; what may be the beginning of one waits for the next piece."""
    waiting = ""
    for piece in pieces:
        waiting += piece
        place = min((at for stop in stops if (at := waiting.find(stop)) >= 0), default=-1)
        if place >= 0:
            if writing is not None:
                writing.cancel()
            if place:
                yield waiting[:place]
            return
        hidden = max((_overlap(waiting, stop) for stop in stops), default=0)
        ready, waiting = waiting[: len(waiting) - hidden], waiting[len(waiting) - hidden :]
        if ready:
            yield ready
    if waiting:
        yield waiting


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that a stop text begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
