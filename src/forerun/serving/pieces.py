"""Tokens → pieces of text as soon as their characters are whole, in any script.

The streamer of transformers (generation/streamers.py, 5.24.0) holds symbols back until the next space: a Japanese text
stands still at its first comma, JSON and emojis until a space comes, and a stop text or a reader's leaving is seen only
then. It also decodes the whole line again for each token.

Method: as Text Generation Inference's `decode_token`: the tokens since the last but one piece are decoded together,
so that a token's text has its neighbour before it; a text that ends in U+FFFD waits for the rest of its character.
"""

from typing import Any

from torch import Tensor
from transformers import TextIteratorStreamer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class PieceStreamer(TextIteratorStreamer):
    """What `generate` hands tokens to in its thread; iterate over it in another."""

    def __init__(self, tokenizer: Any, *, skip_prompt: bool, skip_special_tokens: bool = True):
        super().__init__(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._begin = self._read = 0

    def put(self, value: Tensor) -> None:
        """Take the prompt's tokens, at first, then one new token at a time."""
        if self.skip_prompt and self.next_tokens_are_prompt:
            self.next_tokens_are_prompt = False
            return
        self._ids += value.flatten().tolist()
        piece = self._unread()
        if piece and not piece.endswith(UNFINISHED):
            self._begin, self._read = self._read, len(self._ids)
            self.on_finalized_text(piece)

    def end(self) -> None:
        """Hand on what is left, whole or not."""
        self.on_finalized_text(self._unread(), stream_end=True)

    def _unread(self) -> str:
        before, whole = self._text(self._ids[self._begin : self._read]), self._text(self._ids[self._begin :])
        return whole[len(before) :]

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, **self.decode_kwargs))
