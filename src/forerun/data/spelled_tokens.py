"""A token of control that somebody writes into a message (`<|im_end|>`) is text there, not a command.

Who asks a service, or wrote a chat, could else end his turn and begin another one's: tokenizers find such a token
wherever its text stands. Here it becomes a letter of a private plane before the chat template is rendered, and after
that the ids of its spelling. Texts without such tokens go through the tokenizer in one piece, as before.

Counted as control are the tokens that the tokenizer calls special; `<tool_call>` and `<think>` of Qwen are none, as
answers hold them. Not covered: texts that are no chats (plain texts, prompts of `/v1/completions`), whose tokens count
as they do everywhere; a message that holds U+10C000 and what follows it, letters that nobody has given a meaning.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

FIRST_LETTER = 0x10C000
"""The first of the letters that stand for tokens: in the private plane 16, above what fonts of icons use."""
Encode = Callable[[Sequence[str]], Sequence[Sequence[int] | NDArray[np.int32]]]


class SpelledTokens:
    """The special tokens of a tokenizer, where messages say them."""

    def __init__(self, tokenizer: Any) -> None:
        """Spells each special token once."""
        tokens = sorted((str(each) for each in tokenizer.added_tokens_decoder.values() if each.special), key=len)
        tokens = [token for token in reversed(tokens) if token.strip()]  # the longest first
        self._letters = {token: chr(FIRST_LETTER + number) for number, token in enumerate(tokens)}
        self._tokens = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        self._found = re.compile(f"([{chr(FIRST_LETTER)}-{chr(FIRST_LETTER + len(tokens))}])")
        self._spelled = {letter: _spelling(tokenizer, token) for token, letter in self._letters.items()}

    def hidden(self, text: str) -> str:
        """`text` with a letter in the place of each special token."""
        return self._tokens.sub(lambda match: self._letters[match[0]], text)

    def left_out(self, text: str) -> str:
        """`text` without special tokens."""
        return self._tokens.sub("", text)

    def last_in(self, text: str) -> str:
        """The last special token in `text`; empty where there is none."""
        return ([""] + self._tokens.findall(text))[-1]

    def split_at(self, text: str, token: str) -> list[str]:
        """What stands at the beginning, and after each `token`, up to the next special one."""
        return [self._tokens.split(part)[0] for part in (text.split(token) if token else [text])]

    def in_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages for the chat template, each text of which is `hidden`, those of calls of tools too."""
        return [{**self.in_structure(message), "role": message["role"]} for message in messages]

    def in_structure(self, value: Any) -> Any:
        """A structure as JSON has them, each text of which is `hidden`."""
        if isinstance(value, Mapping):
            return {self.hidden(key): self.in_structure(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.in_structure(inner) for inner in value]
        return self.hidden(value) if isinstance(value, str) else value

    def are_in(self, text: str) -> bool:
        """Whether a message says a special token."""
        return self._tokens.search(text) is not None

    def around(self, encode: Encode) -> Callable[[Sequence[str]], list[NDArray[np.int32]]]:
        """`encode`, for texts whose special tokens may be hidden."""

        def spelled(texts: Sequence[str]) -> list[NDArray[np.int32]]:
            parts = [list(filter(None, self._found.split(text))) for text in texts]
            plain = iter(encode([part for text in parts for part in text if part not in self._spelled]))
            ids = [[self._spelled[part] if part in self._spelled else next(plain) for part in text] for text in parts]
            return [np.asarray(list(chain.from_iterable(text)), np.int32) for text in ids]

        return spelled

    def ids(self, text: str, encode: Callable[[str], Sequence[int]]) -> list[int]:
        """Ids of one text whose special tokens may be hidden."""
        return self.around(lambda parts: [encode(part) for part in parts])([text])[0].tolist()


def _spelling(tokenizer: Any, token: str) -> list[int]:
    """Ids of a special token's letters, none of which is the token itself."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    before = backend.encode_special_tokens
    backend.encode_special_tokens = True
    try:
        ids = backend.encode(token, add_special_tokens=False).ids
        special = tokenizer.convert_tokens_to_ids(token)
        if special in ids:  # it is a word of the vocabulary, too
            ids = [each for letter in token for each in backend.encode(letter, add_special_tokens=False).ids]
    finally:
        backend.encode_special_tokens = before
    return [each for each in ids if each != special]
