"""Tokens for language models: byte pairs learned on the spot, or any tokenizer of the library `tokenizers` by name.

Perplexities per token compare only under one tokenizer, so its name goes with every figure.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.data.byte_pairs import learn_byte_pairs
from forerun.errors import InvalidSettings

SEPARATOR = "<|endoftext|>"
"""Before each document, and after the last."""
GPT2_VOCABULARY = 50_257
BYTES = 256
Ids = NDArray[np.int32]


class LanguageTokens:
    """A tokenizer with its name."""

    def __init__(self, tokenizer: Any, name: str):
        self._tokenizer = tokenizer
        self.name = name

    @property
    def size(self) -> int:
        """Ids that it can give."""
        return self._tokenizer.get_vocab_size()

    def encode(self, documents: Sequence[str]) -> Ids:
        """One stream of ids: the separator, a document, the separator, …, the separator."""
        separator = self._tokenizer.token_to_id(SEPARATOR)
        stream = [separator]
        for encoding in self._tokenizer.encode_batch(list(documents), add_special_tokens=False):
            stream.extend(encoding.ids)
            stream.append(separator)
        return np.asarray(stream, dtype=np.int32)

    def start_of(self, text: str) -> list[int]:
        """Ids of the beginning of a document: the separator and `text`."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [self._tokenizer.token_to_id(SEPARATOR), *ids]

    def text(self, ids: Sequence[int]) -> str:
        """Text of ids up to where the document ends."""
        end = self._tokenizer.token_to_id(SEPARATOR)
        inside = list(itertools.takewhile(lambda token: token != end, ids))
        return self._tokenizer.decode(inside, skip_special_tokens=False)


def learned(documents: Sequence[str], vocabulary_size: int) -> LanguageTokens:
    """Byte-level byte pairs learned from `documents`, at most `vocabulary_size` of them.

    Raises:
        InvalidSettings: fewer than the bytes and the separator.
    """
    if vocabulary_size <= BYTES:
        raise InvalidSettings(
            f"model.config.vocabulary_size: at least {BYTES + 1}, for all bytes and the separator; found "
            f"{vocabulary_size}."
        )
    tokenizer = learn_byte_pairs(documents, vocabulary_size, [SEPARATOR])
    return LanguageTokens(tokenizer, f"byte pairs learned here ({tokenizer.get_vocab_size():,})")
