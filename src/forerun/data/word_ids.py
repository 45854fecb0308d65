"""Ids of many texts, for tokenizers that cut a text by a rule of `CUTS` and turn each word into ids on its own.

The words of large data repeat, so each is handed to the tokenizer once and looked up after that: texts of 50,000
different words go through one core at 29 MB a second by `PIECES`, a tenth slower by `ANY_SCRIPT`, through
`encode_batch_fast` of tokenizers 0.23 at 6. Byte pairs that Forerun learns are such tokenizers. Texts with special
tokens in them, or with letters that Python's `re` and the tokenizer's expressions do not agree on, go through the
tokenizer whole.

`ANY_SCRIPT` asks which letters, signs and numbers Unicode has, and Python's `re` cannot. Its words are therefore cut
exactly where only ASCII is near, elsewhere at blanks, where the rule cuts too; it looks at nothing before a cut. A
blank before a digit stays with it, which saves a lookup.

In memory: at most `MOST_WORDS` words or `MOST_LETTERS` letters, about 100 MB.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from forerun.data.byte_pairs import ANY_SCRIPT, by_words
from forerun.data.chat_tokens import PIECES

Ids = NDArray[np.int32]
_MARK = r"[!-/:-@\[-`{-\x7f\x00-\x08\x0e-\x1b]"
_NOT_MORE = r"(?![^\x00-\x7f])"
"""No letter beyond ASCII follows, which could go on with a word or with marks."""
_WORDS = (
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    rf"|(?:[ \t\x0b\x0c]|{_MARK})?[A-Za-z]++{_NOT_MORE}"
    rf"|[^\S\r\n]?[0-9]|(?: {_MARK}|{_MARK}(?![A-Za-z])){_MARK}*+{_NOT_MORE}[\r\n]*+"
    r"|\s*[\r\n]+|\s+(?!\S)|[^\S\r\n]?\S+(?:\s*[\r\n]+)?"
)
CUTS: dict[str, str] = {ANY_SCRIPT: _WORDS, PIECES: PIECES}
"""What `by_words` cuts by → what cuts here, at some of the same places and nowhere else."""
MOST_WORDS, MOST_LETTERS = 2**19, 2**24
DISAGREED = "\x1c\x1d\x1e\x1f"
"""White space to Python (`str.isspace`), not to Unicode's property White_Space, which the tokenizer goes by."""


class WordIds:
    """Ids of texts without special tokens around, each word looked up in a dictionary that grows."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self._findall = re.compile(CUTS[_pieces_of(self._tokenizer)]).findall
        self._exceptions = (*tokenizer.get_added_vocab(), *DISAGREED)
        self._clear()

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text."""
        if len(self._places) > MOST_WORDS or self._places.letters > MOST_LETTERS:
            self._clear()
        is_whole = [any(letters in text for letters in self._exceptions) for text in texts]
        words = [[] if whole else self._findall(text) for text, whole in zip(texts, is_whole, strict=True)]
        counts = np.fromiter(map(len, words), np.int64, len(words))
        places = np.fromiter(map(self._places.__getitem__, chain.from_iterable(words)), np.int64, int(counts.sum()))
        self._learn()
        sizes = np.diff(self._ends)[places]
        ends = np.cumsum(sizes)
        last = int(ends[-1]) if len(ends) else 0
        ids = self._ids[np.arange(last) + np.repeat(self._ends[places] - (ends - sizes), sizes)]
        text_ends = np.concatenate([[0], ends])[np.cumsum(counts)]
        answers = np.split(ids, text_ends[:-1]) if len(texts) else []
        for place in np.flatnonzero(is_whole).tolist():
            answers[place] = np.asarray(self._tokenizer.encode(texts[place], add_special_tokens=False).ids, np.int32)
        return answers

    def _clear(self) -> None:
        self._places, self._ids, self._ends = _Places(), np.zeros(0, np.int32), np.zeros(1, np.int64)

    def _learn(self) -> None:
        """Ask the tokenizer for the words that came for the first time."""
        if words := self._places.take_new():
            ids = [each.ids for each in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]
            self._ids = np.concatenate([self._ids, np.fromiter(chain.from_iterable(ids), np.int32)])
            self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum([len(own) for own in ids])])


class _Places(dict[str, int]):
    """Word → its place; a new word gets the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._new: list[str] = []
        self.letters = 0

    def __missing__(self, word: str) -> int:
        place = self[word] = len(self)
        self._new.append(word)
        self.letters += len(word)
        return place

    def take_new(self) -> list[str]:
        """Words that came since the last call."""
        new, self._new = self._new, []
        return new


def is_word_by_word(tokenizer: Any) -> bool:
    """Whether a tokenizer of transformers cuts texts as `WordIds` does, and merges bytes within words alone."""
    if not getattr(tokenizer, "is_fast", False) or tokenizer.split_special_tokens:
        return False
    facts = json.loads(tokenizer.backend_tokenizer.to_str())
    model = facts["model"]
    is_plain = model["type"] == "BPE" and not model["dropout"] and facts["normalizer"] is None
    return is_plain and any(facts["pre_tokenizer"] == _rule(pieces) for pieces in CUTS)


def _pieces_of(tokenizer: Tokenizer) -> str:
    rule = json.loads(tokenizer.to_str())["pre_tokenizer"]
    return next(pieces for pieces in CUTS if rule == _rule(pieces))


def _rule(pieces: str) -> Any:
    return json.loads(by_words(pieces).__getstate__())
