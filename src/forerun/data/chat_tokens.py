"""Instruction rows to token ids: the tokenizer's own chat template, and loss on the answer alone.

The prompt is what the template makes of the request with its generation prompt. What the template puts after an answer
(`<end_of_turn>` of Gemma, `<|im_end|>` of ChatML) is found by rendering one, and the first token of it is what
generation stops at; it is trained too, so that a model learns to stop. Where a call of a tool ends in another token
(`data/template_ends.py`), generation stops there as well.

Some templates write a chat anew when a message comes: Qwen3's drops the reasoning of earlier answers, gpt-oss's ends an
answer in another token once it is not the last. Such a chat is several rows: a row ends where the template would
change what it has written, and the next one begins with all messages as they are written from then on. Others write
another text before an answer without reasoning than their own generation prompt is (`Asks`).

Not covered: a template that never ends or fills memory; Jinja's sandbox, in which transformers runs it, limits neither.
"""

import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from forerun.data.byte_pairs import learn_byte_pairs
from forerun.data.call_grammar import HERMES, CallGrammar, call_grammar
from forerun.data.spelled_tokens import SpelledTokens
from forerun.data.template_ends import end_of_answer, end_of_call
from forerun.data.template_limits import limited_memory, limited_time
from forerun.data.template_tools import CallForm, call_form, in_form, in_parts, reads_reasoning, reads_tools
from forerun.data.token_data import IGNORED, TokenSample
from forerun.errors import BadData, InvalidSettings

PAD, END, USER, ASSISTANT = "<pad>", "<end>", "<user>", "<assistant>"
SMALL_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""The dialogue of Gemma Team 2024 (arXiv:2403.08295, table 4); base Gemma has its tokens, but no template."""
PIECES = r"\r?\n[ \t]*|[0-9]{1,2}| ?[A-Za-z]+| ?_+| ?[^\sA-Za-z0-9_]+|[ \t]+(?! )|\s+"
"""The regular expression of `code_tokens`, with at most two digits together and no blank before them."""
PROBE = "PROBE"
LONGEST_FAULT = 300
Message = Mapping[str, Any]
"""`role` and `content`; of calls of tools also `tool_calls`, whose arguments are a mapping, and `tool_call_id`."""
Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of the tools that may be called."""
Asks = Literal["own", "quiet", "bare"]
"""What stands before an answer: the template's own generation prompt; that with reasoning off (`enable_thinking`,
`thinking`); or its own without what it does not write before an answer (`<think>` of DeepSeek-R1)."""
ASKS: tuple[Asks, ...] = get_args(Asks)
"""In the order in which they are tried."""
QUIET = {"enable_thinking": False, "thinking": False}
SPARE = ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>", "<unk>")
"""Special tokens that may pad where a tokenizer pads with its end token, or with none."""


@dataclass(frozen=True)
class ChatTokens:
    """A tokenizer with what training and generating need of it."""

    tokenizer: Any
    """Fast tokenizer of transformers."""
    pad_id: int
    end_ids: tuple[int, ...]
    """Generation stops after one of these."""
    after_answer: str
    """Text that the template puts after an answer."""
    is_tuned: bool
    """Whether the model came with a chat template; others are asked to continue a text before they are adapted."""
    asks: Asks = "own"
    """What stands before an answer that the model is to write."""
    has_parts: bool = False
    """Whether the template wants the text of a message as a list of parts (models that see)."""
    open_end: str = ""
    """The token that ends an answer, where the template leaves it to the next message (GLM's `<|user|>`)."""
    open_call_end: str = ""
    """The token that ends a call of a tool, where the template leaves it to the result (GLM's `<|observation|>`)."""

    @classmethod
    def around(cls, tokenizer: Any, name: str, pad_id: int | None = None) -> "ChatTokens":
        """Check what a tokenizer has; `pad_id` pads, where somebody has chosen it.

        Raises:
            InvalidSettings: it has no pad token, no chat template or nothing to stop at.
        """
        is_tuned = tokenizer.chat_template is not None and tokenizer.chat_template != SMALL_TEMPLATE
        if tokenizer.chat_template is None and {"<start_of_turn>", "<end_of_turn>"} <= set(tokenizer.get_vocab()):
            tokenizer.chat_template = GEMMA_TEMPLATE
        if tokenizer.chat_template is None:
            raise InvalidSettings(
                f"model.name: the tokenizer of {name} needs a chat template, and has none. Take the model that was "
                f"tuned on instructions, or save its tokenizer with a chat_template in a local directory."
            )
        has_parts, after, open_end = _tried_answer(tokenizer, name)
        stop = tokenizer(after, add_special_tokens=False)["input_ids"][:1]
        if not stop:
            raise InvalidSettings(
                f"model.name: the chat template of {name} must put a token after an answer, at which generation stops; "
                f"it puts none. Save its tokenizer with another chat_template in a local directory."
            )
        ends = tuple(dict.fromkeys(token for token in (*stop, tokenizer.eos_token_id) if token is not None))
        pad_id = _pad_id(tokenizer, name, ends) if pad_id is None else pad_id
        chat = cls(tokenizer, pad_id, ends, after, is_tuned, has_parts=has_parts, open_end=open_end)
        if chat.call_form is None:
            return chat
        end, open_call_end = end_of_call(chat.tried, tokenizer, chat.call_form)
        ends = (*ends, *(() if end is None or end in ends else (end,)))
        return replace(chat, end_ids=ends, open_call_end=open_call_end)

    @cached_property
    def spelled(self) -> SpelledTokens:
        """What keeps the tokenizer's special tokens text where messages say them."""
        return SpelledTokens(self.tokenizer)

    @cached_property
    def reads_tools(self) -> bool:
        """Whether the chat template writes what tools there are."""
        return reads_tools(self.tried)

    @cached_property
    def reads_reasoning(self) -> bool:
        """Whether the chat template writes the reasoning of an answer that is a field of its own."""
        return reads_reasoning(self.tried)

    @cached_property
    def call_form(self) -> CallForm | None:
        """How the chat template wants calls of tools; None where it leaves them out."""
        return call_form(self.tried)

    @cached_property
    def call_grammar(self) -> CallGrammar:
        """How an answer writes calls of tools: as the chat template does, else as Hermes."""
        ends = self.tokenizer.convert_ids_to_tokens(list(self.end_ids))
        return call_grammar(self.tried, self.call_form, ends) or HERMES

    def prompt(self, request: str) -> list[int]:
        """Ids of a request, up to where the answer begins."""
        return self._plain(self._checked([_user(request)], add_generation_prompt=True))

    def continuation_prompt(self, text: str) -> list[int]:
        """Ids of a text that a model without instructions is to continue."""
        start = [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        return start + self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def sample(self, request: str, answer: str) -> TokenSample:
        """A row for training: the loss is that of the answer and its end."""
        prompt = self.prompt(request)
        ids = self.tokenizer(answer + self.after_answer, add_special_tokens=False)["input_ids"]
        place = max((index for index, token in enumerate(ids) if token in self.end_ids), default=len(ids) - 1)
        ids = ids[: place + 1]
        return TokenSample(prompt + ids, [IGNORED] * len(prompt) + ids)

    def conversation(self, messages: Sequence[Message], first: int = 0) -> TokenSample:
        """A chat for training: the loss is that of the answers from message `first` on, and of their ends.

        Raises:
            BadData: the template cannot render it, or changes what it has written when a message is added.
        """
        texts, *more = self.conversation_rows(messages, first)
        if more:
            raise BadData(
                f"chat: a template only adds to what it has written when a message comes; found that of this tokenizer "
                f"changes it within a chat of {len(messages)} messages. Give chats with one answer each, or a "
                f"tokenizer with another chat_template."
            )
        return self.conversation_sample([self._plain(text) for text in texts])

    def conversation_rows(self, messages: Sequence[Message], first: int = 0, tools: Tools = ()) -> list[list[str]]:
        """What stands before each answer from message `first` on, and the answer, in turn; for `spelled.around`.

        One row, but for a template that changes what it has written: the next row begins there, with all that stands
        before its first answer as the template writes it by then.

        Raises:
            BadData: the template cannot render the chat.
        """
        rows: list[list[str]] = []
        text = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number < first:
                continue
            after = self._checked(messages[: number + 1], tools)
            before = self._before(messages[:number], after, tools)
            core = text.removesuffix(self._last_words)
            if rows and not before.startswith(text) and before.startswith(core):
                rows[-1][-1], text = rows[-1][-1].removesuffix(self._last_words), core
            if not rows or not before.startswith(text):
                rows, text = [*rows, []], ""
            _require_calls(message, after[len(before) :])
            ending = self.open_call_end if message.get("tool_calls") else self.open_end
            rows[-1] += [before[len(text) :], after[len(before) :] + ending]
            text = after + ending
        return rows or [[]]

    @cached_property
    def _last_words(self) -> str:
        """What the template writes after the end of the last answer alone (Phi-3: its end of text)."""
        end = self.tokenizer.convert_ids_to_tokens(self.end_ids[0])
        return self.after_answer.removeprefix(end) if self.after_answer.startswith(end) else ""

    def asks_before(self, messages: Sequence[Message], tools: Tools = ()) -> Asks | None:
        """What the template writes before the last message, an answer; None where it is none of `Asks`.

        Raises:
            BadData: the template cannot render the chat.
        """
        after = self._checked(messages, tools)
        return next((asks for asks, text in self._prompts(messages[:-1], tools) if after.startswith(text)), None)

    def _before(self, messages: Sequence[Message], after: str, tools: Tools) -> str:
        """What stands before an answer, with which `after` begins."""
        before = next((text for _, text in self._prompts(messages, tools) if after.startswith(text)), None)
        if before is None:
            raise BadData(
                f"chat: what a template writes before an answer is its generation prompt; found that of this tokenizer "
                f"writes another text before message {len(messages) + 1}. Give a tokenizer with another chat_template."
            )
        return before

    def _prompts(self, messages: Sequence[Message], tools: Tools) -> Iterator[tuple[Asks, str]]:
        """The ways to ask for the next answer."""
        for asks in ASKS:
            yield asks, self._question(messages, tools, asks)

    def _question(self, messages: Sequence[Message], tools: Tools, asks: Asks) -> str:
        more = QUIET if asks == "quiet" else {}
        text = self._checked(messages, tools, add_generation_prompt=True, **more)
        return text.removesuffix(self.unanswered) if asks == "bare" else text

    @cached_property
    def unanswered(self) -> str:
        """What the generation prompt ends in, and no answer begins with."""
        question = self._checked([_user(PROBE)], add_generation_prompt=True)
        answered = self._checked([_user(PROBE), _assistant(PROBE)])
        return question[len(os.path.commonprefix([question, answered])) :]

    def conversation_sample(self, pieces: Sequence[Sequence[int]]) -> TokenSample:
        """A chat for training from the ids of one of its `conversation_rows`."""
        ids: list[int] = []
        labels: list[int] = []
        for prompt, answer in zip(pieces[::2], pieces[1::2], strict=True):
            place = max((index for index, token in enumerate(answer) if token in self.end_ids), default=len(answer) - 1)
            ids += [*prompt, *answer]
            labels += [IGNORED] * len(prompt) + [*answer[: place + 1]] + [IGNORED] * (len(answer) - place - 1)
        end = max((index + 1 for index, label in enumerate(labels) if label != IGNORED), default=0)
        return TokenSample(ids[:end], labels[:end])

    def chat_prompt(self, messages: Sequence[Message], tools: Tools = ()) -> list[int]:
        """Ids of a chat up to where the next answer begins.

        Raises:
            BadData: the template cannot render it, or leaves calls of tools out.
        """
        return self._plain(self._question(messages, tools, self.asks))

    def _plain(self, text: str) -> list[int]:
        # the template writes its own start token: without add_special_tokens=False there would be two
        return self.spelled.ids(text, lambda part: self.tokenizer(part, add_special_tokens=False)["input_ids"])

    def tried(self, messages: Sequence[Message], tools: Tools, **options: bool) -> str | None:
        """What the template makes of messages of our own; None where it refuses them."""
        try:
            with limited_memory():
                return _rendered(self.tokenizer, self._in_form(messages), tools, **options)
        except template_faults():
            return None

    def _checked(self, messages: Sequence[Message], tools: Tools = (), **options: bool) -> str:
        if any("tool_calls" in message for message in messages):
            if self.call_form is None:
                raise BadData(
                    "chat: a call of a tool needs a chat template that writes tool_calls; found one that leaves them "
                    "out. Allow the repair tool-calls, which writes calls into answers as text, or give a tokenizer "
                    "with another chat_template."
                )
            messages = in_form(messages, self.call_form)
        safe = self.spelled.in_messages(messages)
        try:
            return _rendered(self.tokenizer, self._in_form(safe), self.spelled.in_structure(tools), **options)
        except template_faults() as error:
            roles = ", ".join(message["role"] for message in messages)
            raise BadData(
                f"chat: the model's chat template must take every chat; it refuses one with the roles {roles}: "
                f"{fault_words(error)}. Change those rows, or give a tokenizer with another chat_template."
            ) from error

    def _in_form(self, messages: Sequence[Message]) -> Sequence[Message]:
        return in_parts(messages) if self.has_parts else messages

    def text(self, ids: Sequence[int]) -> str:
        """Text of `ids`, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def template_faults() -> tuple[type[Exception], ...]:
    """What a template may raise: it is a program of whoever made the model, shut in by Jinja's sandbox."""
    from jinja2 import TemplateError

    return (
        TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
    )  # fmt: skip


def fault_words(error: Exception) -> str:
    """What a template raised, in one short line."""
    text = " ".join(str(error).split())[:LONGEST_FAULT]
    return f"{text or 'no message'} ({type(error).__name__})"


def _require_calls(message: Message, answer: str) -> None:
    """Refuse a template that leaves calls out (gpt-oss's writes the first of several).

    Raises:
        BadData: it does.
    """
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    missing = next((name for name in names if answer.count(name) < names.count(name)), None)
    if missing is not None:
        raise BadData(
            f"chat: a chat template writes every call of an answer; found {len(names)} calls in one, of which that of "
            f"this tokenizer leaves out one of {missing!r}. Give each call a message of its own with its result after "
            f"it, or allow the repair tool-calls, which writes calls into answers as text."
        )


def _pad_id(tokenizer: Any, name: str, ends: Sequence[int]) -> int:
    """Id of the pad token, or of another special token where the pad token also ends a turn."""
    vocabulary = tokenizer.get_vocab()
    for token in (tokenizer.pad_token, *SPARE):
        if token in vocabulary and vocabulary[token] not in ends:
            return vocabulary[token]
    raise InvalidSettings(
        f"model.name: the tokenizer of {name} needs a pad token that does not end a turn; found "
        f"{tokenizer.pad_token!r}, while turns end in {tokenizer.convert_ids_to_tokens(list(ends))}. Set "
        f"tokenizer.pad_token to a token of its vocabulary that occurs in no text, and save it in a local directory."
    )


def _tried_answer(tokenizer: Any, name: str) -> tuple[bool, str, str]:
    """Whether the chat template wants parts, and `end_of_answer`.

    Raises:
        InvalidSettings: it renders no question with its answer.
    """
    fault: Exception | None = None
    for has_parts in (False, True):
        try:
            with limited_memory():
                end = end_of_answer(
                    lambda messages, form=in_parts if has_parts else list: _rendered(tokenizer, form(messages)),
                    tokenizer,
                )
        except template_faults() as error:
            fault = fault or error
            continue
        if end is not None:
            return has_parts, *end
    reason = f"it raised {fault_words(fault)}" if fault is not None else "it leaves out what they say"
    raise InvalidSettings(
        f"model.name: the chat template of {name} must render a question and its answer; {reason}. Take a model whose "
        f"template can, or save its tokenizer with another chat_template in a local directory."
    ) from fault


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _rendered(tokenizer: Any, messages: Sequence[Message], tools: Tools = (), **options: bool) -> str:
    with limited_time():
        return tokenizer.apply_chat_template(messages, tools=list(tools) or None, tokenize=False, **options)


def small_tokenizer(texts: Sequence[str], vocabulary_size: int) -> Any:
    """A byte-level BPE tokenizer learned from `texts`, with pad and end tokens and a chat template.

    The words of the template are its own special tokens; every byte has an id, so nothing is out of vocabulary.
    """
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, USER, ASSISTANT]
    learned = learn_byte_pairs(texts, vocabulary_size, special, pieces=PIECES, minimum_count=2)
    return PreTrainedTokenizerFast(
        tokenizer_object=learned, pad_token=PAD, eos_token=END, additional_special_tokens=[USER, ASSISTANT],
        chat_template=SMALL_TEMPLATE, clean_up_tokenization_spaces=False,
    )  # fmt: skip
