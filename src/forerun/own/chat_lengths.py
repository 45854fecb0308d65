"""How many tokens do chats have for a model, and does its chat template write tools and calls of them?

Counted as training makes samples of them, before they are cut. Where the tokenizer is not here, or its template refuses
a chat: characters / 4, with `TURN_TOKENS` for each message and `SYSTEM_TOKENS` where a template adds a system message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from forerun.data.own.inspection import estimated_tokens
from forerun.data.own.inspection_record import ChatCount
from forerun.data.own.row_kinds import CanonicalRow, ChatRow, PreferenceRow, Turn, UnpairedRow, texts_of, tools_of
from forerun.data.own.tool_calls import call_texts
from forerun.errors import ForerunError
from forerun.own.chat_encoder import ChatEncoder
from forerun.own.tokens import tokenizer_of
from forerun.settings.schema import Settings

WORKLOADS = ("causal-lm", "preference")
"""Those whose rows go through a chat template."""
LEAST = 8
"""A length that every model has positions for."""
TURN_TOKENS = 5
"""ChatML, as Qwen2.5 and SmolLM2 have it: `<|im_start|>`, the role, a line's end, `<|im_end|>`, a line's end."""
SYSTEM_TOKENS = 32
"""A system message that a template adds: some 25 of Qwen2.5 and SmolLM2, 33 of Llama 3.2 (dates of its knowledge)."""


def chat_lengths(settings: Settings, rows: Sequence[CanonicalRow]) -> ChatCount:
    """Tokens of each chat, and what becomes of tools in the template."""
    sides = [side for row in rows for side in _sides(row)]
    step = 2 if any(isinstance(row, PreferenceRow) for row in rows) else 1
    tools = sum(bool(chat.tools) for chat in sides[::step])
    calls = sum(any(map(_has_calls, sides[place : place + step])) for place in range(0, len(sides), step))
    if settings.workload not in WORKLOADS:  # rows are texts
        return ChatCount(tools=tools, calls=calls, are_tools_read=False, are_calls_read=False)
    if not sides:
        return ChatCount()
    count = _count(settings, sides)
    if step == 2:
        pairs = zip(count.lengths[::2], count.lengths[1::2], strict=True)
        count = count.model_copy(update={"lengths": [max(pair) for pair in pairs]})
    return count.model_copy(update={"tools": tools, "calls": calls})


def _count(settings: Settings, chats: Sequence[ChatRow]) -> ChatCount:
    is_chat = not all(chat.is_plain for chat in chats)
    estimates = [_estimate(chat, is_chat=is_chat) for chat in chats]
    # chats are counted whole, and a model with fewer positions than the default length would be refused
    settings = settings.model_copy(update={"batch": settings.batch.model_copy(update={"sequence_length": LEAST})})
    try:
        texts = (text for chat in chats for text in (*texts_of(chat), *tools_of(chat)))
        tokenizer, _ = tokenizer_of(settings, texts)
        encoder = ChatEncoder(tokenizer, settings, is_chat=is_chat)
    except ForerunError:  # the forecast names what is wrong
        return ChatCount(lengths=estimates)
    are_calls_read = encoder.chat.call_form is not None
    count = ChatCount(lengths=estimates, are_tools_read=encoder.chat.reads_tools, are_calls_read=are_calls_read)
    whole = chats if are_calls_read else [_with_texts(chat) for chat in chats]
    try:
        samples = list(encoder.whole_samples((chat, 0) for chat in whole))
    except ForerunError:
        return count
    lengths = [max(len(sample.ids) for sample in own) for own in samples]
    divided = sum(len(own) > 1 for own in samples)
    return count.model_copy(
        update={"lengths": lengths, "are_counted": True, "divided": divided, "rows": sum(map(len, samples))}
    )


def _has_calls(chat: ChatRow) -> bool:
    return any(turn.calls for turn in chat.messages)


def _with_texts(chat: ChatRow) -> ChatRow:
    """The chat with its calls as text, as the repair `tool-calls` writes them."""
    turns = [
        Turn(turn.role, "\n".join(filter(None, [turn.content, *call_texts(turn.calls)]))) if turn.calls else turn
        for turn in chat.messages
    ]
    return replace(chat, messages=tuple(turns))


def _sides(row: CanonicalRow) -> Iterator[ChatRow]:
    if isinstance(row, ChatRow):
        yield row
    elif isinstance(row, PreferenceRow):
        for answer in (row.better, row.worse):
            yield ChatRow((*row.prompt, *answer), row.is_plain, row.tools)
    elif isinstance(row, UnpairedRow):
        yield ChatRow((*row.prompt, *row.answer), row.is_plain, row.tools)


def _estimate(chat: ChatRow, *, is_chat: bool) -> int:
    tokens = estimated_tokens("".join((*texts_of(chat), *tools_of(chat))))
    if not is_chat:
        return tokens
    has_system = chat.messages[0].role == "system"
    return tokens + TURN_TOKENS * len(chat.messages) + (0 if has_system else SYSTEM_TOKENS)
