"""How many tokens do chats have for a model? Contents, and what its chat template writes around them.

Counted as training makes samples of them, before they are cut. Where the tokenizer is not here, or its template refuses
a chat: characters / 4, with `TURN_TOKENS` for each message and `SYSTEM_TOKENS` where a template adds a system message.
"""

import math
from collections.abc import Iterator, Sequence

from forerun.data.own.inspection import CHARACTERS_A_TOKEN
from forerun.data.own.row_kinds import CanonicalRow, ChatRow, PreferenceRow, texts_of
from forerun.errors import ForerunError
from forerun.own.language import ChatEncoder
from forerun.own.tokens import tokenizer_of
from forerun.settings.schema import Settings

WORKLOADS = ("causal-lm", "preference")
"""Those whose rows go through a chat template."""
TURN_TOKENS = 5
"""ChatML, as Qwen2.5 and SmolLM2 have it: `<|im_start|>`, the role, a line's end, `<|im_end|>`, a line's end."""
SYSTEM_TOKENS = 32
"""A system message that a template adds: some 25 of Qwen2.5 and SmolLM2, 33 of Llama 3.2 (dates of its knowledge)."""


def chat_lengths(settings: Settings, rows: Sequence[CanonicalRow]) -> tuple[list[int], bool]:
    """Tokens of each chat, of a preference those of its longer side, and whether they are counted.

    None of rows that are no chats.
    """
    chats = [side for row in rows for side in _sides(row)] if settings.workload in WORKLOADS else []
    if not chats:
        return [], False
    lengths, are_counted = _lengths(settings, chats)
    if settings.workload == "preference":
        lengths = [max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True)]
    return lengths, are_counted


def _lengths(settings: Settings, chats: Sequence[ChatRow]) -> tuple[list[int], bool]:
    is_chat = not all(chat.is_plain for chat in chats)
    try:
        tokenizer, _ = tokenizer_of(settings, (text for chat in chats for text in texts_of(chat)))
        encoder = ChatEncoder(tokenizer, settings, is_chat=is_chat)
        return [len(sample.ids) for sample in encoder.whole_samples((chat, 0) for chat in chats)], True
    except ForerunError:  # the forecast names what is wrong
        return [_estimate(chat, is_chat=is_chat) for chat in chats], False


def _sides(row: CanonicalRow) -> Iterator[ChatRow]:
    if isinstance(row, ChatRow):
        yield row
    elif isinstance(row, PreferenceRow):
        for answer in (row.better, row.worse):
            yield ChatRow((*row.prompt, *answer), row.is_plain)


def _estimate(chat: ChatRow, *, is_chat: bool) -> int:
    tokens = math.ceil(sum(len(text) for text in texts_of(chat)) / CHARACTERS_A_TOKEN)
    if not is_chat:
        return tokens
    has_system = chat.messages[0].role == "system"
    return tokens + TURN_TOKENS * len(chat.messages) + (0 if has_system else SYSTEM_TOKENS)
