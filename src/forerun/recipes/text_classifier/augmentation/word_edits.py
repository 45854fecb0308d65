"""Edits of words that make another text of the same label, or should: EDA, AEDA, typing noise. Pure in their generator.

- EDA (Wei and Zou 2019, arXiv 1901.11196), its four operations on `strength` × words of them (at least one):
  synonym replacement, insertion of a synonym, swap of two words, deletion. Synonyms come from a lexicon.
- AEDA (Karimi et al. 2021, arXiv 2108.13230): punctuation put between words, at 1 to `strength` × words places.
- Keyboard noise: letters replaced by a neighbour on a QWERTY keyboard; character swap: neighbouring letters exchanged.

Protected words are never changed, removed, moved or chosen; an edit that finds nothing to do returns what it got.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

T = TypeVar("T")
PUNCTUATION = (".", ";", "?", ":", "!", ",")
"""The six marks that AEDA inserts."""
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
LEAST_LETTERS = 4
"""Shorter words are not misspelt: a changed letter makes another word of them."""
NEGATIONS = frozenset(
    ("no", "not", "nor", "none", "never", "nothing", "nobody", "neither", "cannot", "without", "hardly", "barely",
     "n't", "don't", "doesn't", "didn't", "isn't", "aren't", "wasn't", "weren't", "won't", "wouldn't", "can't",
     "couldn't", "shouldn't", "hasn't", "haven't", "hadn't")
)  # fmt: skip
"""Always protected: the label of a sentence often hangs on them."""


@dataclass(frozen=True)
class Edits:
    """Protected words and synonyms, which edits need beside the text."""

    protected: Set[str] = NEGATIONS
    """Words in lower case that no edit touches."""
    synonyms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Synonyms of words in lower case."""


Edit = Callable[[list[str], float, np.random.Generator, Edits], list[str]]


def synonym(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Replace words by synonyms."""
    places = [n for n in _editable_places(words, edits) if edits.synonyms.get(words[n].lower())]
    words = list(words)
    for place in _sample_places(places, _edit_count(words, strength), random):
        words[place] = _pick(edits.synonyms[words[place].lower()], random)
    return words


def insertion(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Put synonyms of words at random places."""
    candidates = [words[n].lower() for n in _editable_places(words, edits) if edits.synonyms.get(words[n].lower())]
    count, words = _edit_count(words, strength), list(words)
    for _ in range(count if candidates else 0):
        words.insert(int(random.integers(len(words) + 1)), _pick(edits.synonyms[_pick(candidates, random)], random))
    return words


def swap(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Exchange two words, again and again."""
    places, words = _editable_places(words, edits), list(words)
    for _ in range(_edit_count(words, strength) if len(places) > 1 else 0):
        one, other = _sample_places(places, 2, random)
        words[one], words[other] = words[other], words[one]
    return words


def deletion(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Remove each word with the probability `strength`; at least one stays."""
    places = set(_editable_places(words, edits))
    remaining = [word for n, word in enumerate(words) if n not in places or random.random() >= strength]
    return remaining or [_pick(words, random)]


def eda(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """One of EDA's four, by chance."""
    return _pick((synonym, insertion, swap, deletion), random)(words, strength, random, edits)


def aeda(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Punctuation between words."""
    most, words = _edit_count(words, strength), list(words)
    for _ in range(int(random.integers(1, most + 1))):
        words.insert(int(random.integers(len(words) + 1)), _pick(PUNCTUATION, random))
    return words


def keyboard(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """One letter of a word replaced by its neighbour on the keyboard."""
    return _misspell(words, strength, random, edits, _hit_neighbour_key)


def character_swap(words: list[str], strength: float, random: np.random.Generator, edits: Edits) -> list[str]:
    """Two neighbouring letters inside a word exchanged."""
    return _misspell(words, strength, random, edits, _exchange_letters)


EDITS: dict[str, Edit] = {
    "synonym": synonym, "insertion": insertion, "swap": swap, "deletion": deletion, "eda": eda, "aeda": aeda,
    "keyboard": keyboard, "character-swap": character_swap,
}  # fmt: skip
NEED_SYNONYMS = ("synonym", "insertion", "eda")


def _misspell(
    words: list[str],
    strength: float,
    random: np.random.Generator,
    edits: Edits,
    change: Callable[[str, np.random.Generator], str],
) -> list[str]:
    places = [n for n in _editable_places(words, edits) if len(words[n]) >= LEAST_LETTERS and words[n].isalpha()]
    words = list(words)
    for place in _sample_places(places, _edit_count(words, strength), random):
        words[place] = change(words[place], random)
    return words


def _hit_neighbour_key(word: str, random: np.random.Generator) -> str:
    place = int(random.integers(len(word)))
    letter = word[place].lower()
    row = next((row for row in ROWS if letter in row), "")
    near = [row[n] for n in (row.find(letter) - 1, row.find(letter) + 1) if 0 <= n < len(row)] if row else []
    return word if not near else word[:place] + _pick(near, random) + word[place + 1 :]


def _exchange_letters(word: str, random: np.random.Generator) -> str:
    place = int(random.integers(1, len(word) - 2))
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _editable_places(words: Sequence[str], edits: Edits) -> list[int]:
    """Places of words that may be touched."""
    return [n for n, word in enumerate(words) if word.lower() not in edits.protected]


def _edit_count(words: Sequence[str], strength: float) -> int:
    return max(1, int(strength * len(words)))


def _sample_places(places: Sequence[int], count: int, random: np.random.Generator) -> list[int]:
    if not places:
        return []
    return [places[n] for n in random.choice(len(places), size=min(count, len(places)), replace=False)]


def _pick(values: Sequence[T], random: np.random.Generator) -> T:
    return values[int(random.integers(len(values)))]
