"""What a call of a fused attention kernel is about: its query, the keys that a token meets, whether it is causal."""

import math

from forerun.clock.costs import CAUSAL_ARGUMENT, WINDOWED
from forerun.trace import Call, TensorSpec

ROWS = 128
"""Query rows of one block of FlashAttention."""
TOKENS_FIRST = (WINDOWED, "aten._efficient_attention_")
"""Operators whose tensors have the tokens before the heads."""


def is_causal(call: Call) -> bool:
    """Whether a kernel may skip half: causal by its schema, and no sliding window has left the rest out already."""
    return has_diagonal(call) and not (call.name.startswith(WINDOWED) and call.arguments[causal_place(call) + 1] >= 0)


def has_diagonal(call: Call) -> bool:
    """Whether blocks on the diagonal are computed whole and half of them thrown away."""
    place = causal_place(call)
    return place < len(call.arguments) and bool(call.arguments[place])  # of the kernel's own kinds of masks, 1 and 2


def causal_place(call: Call) -> int:
    """Place among the arguments of what says so; behind all where no argument does."""
    return CAUSAL_ARGUMENT.get(call.name.split(".")[1], len(call.arguments))


def query_of(call: Call) -> TensorSpec:
    """Query of an attention call: its last dimension is the size of a head."""
    return next(a for a in call.arguments if isinstance(a, TensorSpec) and len(a.shape) in (3, 4))


def length_and_blocks(call: Call) -> tuple[float, float]:
    """Keys that a token of an attention call meets, and blocks of 128 rows that are computed side by side."""
    query = query_of(call)
    has_tokens_first = call.name.startswith(TOKENS_FIRST)
    offsets = next((a for a in call.arguments if isinstance(a, TensorSpec) and a.dtype == "int32"), None)
    if len(query.shape) == 4 and not (has_tokens_first and offsets is not None):
        batch, heads, length, _ = query.shape
        if has_tokens_first:
            heads, length = length, heads
        return length, batch * heads * -(-length // ROWS)
    tokens, heads, size = query.shape[-3:]  # documents laid end to end, with the offset of each
    documents = 1 if offsets is None else offsets.shape[0] - 1
    products = 5 if "backward" in call.name else 2
    keys_per_token = call.flops / (products * 2 * tokens * heads * size)
    return keys_per_token, heads * documents * math.ceil(tokens / documents / ROWS)
