"""A source file as two hashed vectors, the input of the third tier's embedding (`embedding.model`).

- *vocabulary*: parts of its names, in lower case (`moveLeft` gives move, left), and the words in its texts: what the
  file is about; languages share it.
- *structure*: runs of one to four marks of the syntax stream: how it goes about it, names apart.

Each part is counted as 1 + log(count), hashed into one of so many places with a sign, and the vector has length 1
(Weinberger et al. 2009, arXiv 0902.2206).
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.recipes.code_detector.similarity.grams import grams
from forerun.recipes.code_detector.similarity.streams import FileStreams, streams_of, token
from forerun.recipes.code_detector.similarity.winnowing import mixed

VOCABULARY, STRUCTURE = 4096, 4096
LONGEST_RUN = 4
NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
Vector = NDArray[np.float32]


def features(code: str, language: str) -> Vector:
    """Vocabulary and structure side by side (VOCABULARY + STRUCTURE,), each of length 1 or 0.

    Raises:
        NotSupported: no grammar for `language`.
    """
    streams = streams_of(code, language)
    return part_features(streams, code.split("\n"), np.zeros(len(streams.syntax), dtype=np.bool_))


def part_features(
    streams: FileStreams, lines: Sequence[str], used: NDArray[np.bool_], first: int = 1, last: int | None = None
) -> Vector:
    """Features of the lines `first` to `last`, without marks that are `used` and lines that are nothing else."""
    marks, last = streams.syntax, len(lines) if last is None else last
    free = (marks.first_lines >= first) & (marks.last_lines <= last) & ~used
    total = np.concatenate(([0], np.cumsum(free)))
    runs = []
    for k in range(1, LONGEST_RUN + 1):
        places = np.flatnonzero(total[k:] - total[:-k] == k) if len(free) >= k else np.zeros(0, dtype=np.int64)
        runs.append(mixed(grams(marks.tokens, k)[places] + np.uint64(k)))
    base_lines = set(marks.first_lines[used].tolist()) - set(marks.first_lines[~used].tolist())
    text = "\n".join(line for number, line in enumerate(lines[first - 1 : last], first) if number not in base_lines)
    return np.concatenate([hashed(name_parts(text), VOCABULARY), _placed(np.concatenate(runs), STRUCTURE)])


def features_of(files: Iterable[tuple[str, str]]) -> NDArray[np.float32]:
    """One row a (code, language)."""
    return np.stack([features(code, language) for code, language in files])


def name_parts(code: str) -> list[str]:
    """Parts of the words in a text, in lower case."""
    return [part.lower() for part in NAME_PARTS.findall(code)]


def hashed(words: Sequence[str], places: int) -> Vector:
    """Words in a vector of `places`."""
    return _placed(np.asarray([token(word) for word in words], dtype=np.uint64), places)


def _placed(numbers: NDArray[np.uint64], places: int) -> Vector:
    distinct, counts = np.unique(numbers, return_counts=True)
    vector = np.zeros(places, dtype=np.float32)
    signs = np.where(distinct >> np.uint64(63), 1.0, -1.0)
    np.add.at(vector, (distinct % np.uint64(places)).astype(np.int64), signs * (1 + np.log(counts)))
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
