"""What stands where a text says the mask token? Candidates of a masked language model for each place, and the text.

As transformers' pipeline `fill-mask`: places are filled independently of each other, probabilities are over the whole
vocabulary. A place behind the model's sequence length has no candidates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

CANDIDATES = 20
"""Most candidates of a place."""
SHOWN_CANDIDATES = 5
"""Candidates where nobody asks for a number, as in transformers' pipeline."""
JOINED = "##"
"""Before a WordPiece that goes on with the word before it."""
SIGNIFICANT = 6


def filled_answer(logits: Tensor, text: str, ids: Sequence[int], tokenizer: Any) -> dict[str, Any]:
    """`filled`, the text with the likeliest tokens, and `masks`, the candidates of each place, the likeliest first.

    `logits` (tokens, vocabulary) are those of `ids`, which may end before the text does.
    """
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
    masks: list[list[dict[str, Any]] | None] = []
    for place in places:
        best = logits[place].double().softmax(-1).topk(min(CANDIDATES, logits.shape[-1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        masks.append(
            [
                {"token": tokenizer.decode([token]), "id": token, "probability": round(chance, SIGNIFICANT)}
                for token, chance in pairs
            ]
        )
    count = text.count(tokenizer.mask_token)
    masks = (masks + [None] * count)[:count]
    tokens = [None if candidates is None else candidates[0]["token"] for candidates in masks]
    return {"filled": filled_text(text, tokenizer.mask_token, tokens), "masks": masks}


def filled_text(text: str, mask: str, tokens: Sequence[str | None]) -> str:
    """The text with `tokens` in place of its masks, in order; None leaves the mask."""
    first, *rest = text.split(mask)
    filled = first
    for token, after in zip(tokens, rest, strict=True):
        word = mask if token is None else token
        if word.startswith(JOINED):
            filled, word = filled.rstrip(), word.removeprefix(JOINED)
        elif word.startswith(" ") and (not filled or filled[-1].isspace()):
            word = word.removeprefix(" ")
        filled += word + after
    return filled


def likeliest(answer: Mapping[str, Any], most: int = SHOWN_CANDIDATES) -> dict[str, Any]:
    """The answer with at most so many candidates of a place."""
    return {**answer, "masks": [None if candidates is None else candidates[:most] for candidates in answer["masks"]]}
