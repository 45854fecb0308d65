"""Who speaks in a chat, chats written as one text, and where two chats begin to differ."""

import re

from forerun.data.own.row_kinds import Turn
from forerun.data.own.tool_calls import CALLER

ROLES = {
    "system": "system", "developer": "system", "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "assistant": "assistant", "model": "assistant", "bot": "assistant", "chatgpt": "assistant",
    "ai": "assistant", CALLER: "assistant", "tool": "tool", "function": "tool", "observation": "tool",
    "ipython": "tool",
}  # fmt: skip
"""Words for who speaks → the role that chat templates have."""
SPOKEN = re.compile(r"\n\n(Human|Assistant): ?")
"""Between the turns of a chat written as one text, as Anthropic's HH-RLHF has them."""


def is_spoken(text: str) -> bool:
    """Whether a text is a chat."""
    return SPOKEN.search(text) is not None


def shared_turns(one: tuple[Turn, ...], other: tuple[Turn, ...]) -> int:
    """Turns with which both begin; the last of either is never among them."""
    most = min(len(one), len(other)) - 1
    return next((i for i in range(most) if one[i] != other[i]), max(most, 0))


def spoken_turns(text: str) -> tuple[Turn, ...]:
    """The turns of a chat that is written as one text."""
    pieces = SPOKEN.split(text)[1:]
    turns = zip(pieces[::2], pieces[1::2], strict=True)
    return tuple(Turn("user" if who == "Human" else "assistant", content) for who, content in turns)
