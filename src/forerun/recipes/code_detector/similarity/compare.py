"""Two files side by side: how much of each is in the other, tier by tier, and on which lines.

- *words*: shared winnowing fingerprints (`winnowing`); finds copies, renamed ones too.
- *syntax*: tiles of the syntax tree's marks (`tiling`); finds copies with changed loops, order and spelling.
- *embedding*: pieces whose learned vectors lie close (`embedding.vectors`); needs a model, so it is not made here.

A score is the share of both files that is in common, 2 · shared / (all of a + all of b), from 0 to 1. What given base
code contains counts neither as shared nor as all. Evidence are line ranges on both sides.

**Not covered:** why two files are alike. Small exercises leave little choice, so high scores there mean little; a
score is to be read beside those of the cohort (`cohort`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity.grams import Grams, covered, grams
from forerun.recipes.code_detector.similarity.streams import FileStreams, TokenStream, streams_of
from forerun.recipes.code_detector.similarity.tiling import Tile, Used, tiles
from forerun.recipes.code_detector.similarity.winnowing import Fingerprints, Winnowing, base_runs, fingerprints
from forerun.records import Record

Tier = Literal["words", "syntax", "embedding"]
LEAST_MARKS = 20
"""A file with fewer marks of syntax (about ten short lines) is too small to compare: most such files look alike."""


@dataclass(frozen=True)
class SourceFile:
    """One file as it came."""

    name: str
    code: str = field(repr=False)
    language: str


@dataclass(frozen=True)
class Sizes:
    """Lengths that count as evidence; the defaults did best on validation pairs (`benchmarks/similarity.py`)."""

    winnowing: Winnowing = Winnowing()
    minimum_tile: int = 8
    """Shortest run of marks that two files can have in common."""

    def __post_init__(self) -> None:
        if self.minimum_tile < 1:
            raise InvalidSettings(f"minimum_tile must be at least 1; found {self.minimum_tile}.")


@dataclass(frozen=True)
class BaseCode:
    """Runs of code that was handed out, which nobody copied."""

    word_runs: Grams
    word_stretches: Grams
    """Runs of the guarantee's length, for evidence."""
    syntax_runs: Grams


@dataclass(frozen=True)
class PreparedFile:
    """A file ready to be compared with any other."""

    name: str
    language: str
    streams: FileStreams
    fingerprints: Fingerprints
    used_words: Used
    """Words that are base code."""
    used_syntax: Used
    """Marks that are base code."""

    @property
    def own_marks(self) -> int:
        """Marks of syntax that are not base code."""
        return int((~self.used_syntax).sum())

    @property
    def is_too_small(self) -> bool:
        """Whether there is not enough of the file's own code to compare."""
        return self.own_marks < LEAST_MARKS


class Evidence(Record):
    """One stretch in common: lines from 1, both ends included."""

    tier: Tier
    a_first_line: int
    a_last_line: int
    b_first_line: int
    b_last_line: int
    tokens: int
    cosine: float | None = None
    """Cosine of the two pieces' vectors; null on the other tiers."""


class TierScore(Record):
    """Shares that two files have in common on one tier, from 0 to 1."""

    score: float
    """Share of both files."""
    of_a: float
    """Share of the first file."""
    of_b: float


class FileComparison(Record):
    """Two files compared."""

    a: str
    b: str
    words: TierScore
    syntax: TierScore
    too_small: bool
    """One of the files has too little code of its own, so the scores say nothing."""
    evidence: list[Evidence]


def base_code(files: Sequence[SourceFile], sizes: Sizes) -> BaseCode | None:
    """Runs of code in `files`, which comparisons leave out; None for no files."""
    if not files:
        return None
    streams = [streams_of(file.code, file.language) for file in files]
    winnowing, minimum = sizes.winnowing, sizes.minimum_tile
    return BaseCode(
        np.unique(np.concatenate([base_runs(s.words.tokens, winnowing) for s in streams])),
        np.unique(np.concatenate([grams(s.words.tokens, winnowing.guarantee) for s in streams])),
        np.unique(np.concatenate([grams(s.syntax.tokens, minimum) for s in streams])),
    )


def prepare(file: SourceFile, sizes: Sizes, base: BaseCode | None = None) -> PreparedFile:
    """Parse and fingerprint a file.

    Raises:
        NotSupported: no grammar for its language.
    """
    streams = streams_of(file.code, file.language)
    words, syntax = streams.words, streams.syntax
    base_words = _in_base(words, None if base is None else base.word_stretches, sizes.winnowing.guarantee)
    base_syntax = _in_base(syntax, None if base is None else base.syntax_runs, sizes.minimum_tile)
    prints = fingerprints(words.tokens, sizes.winnowing, None if base is None else base.word_runs)
    return PreparedFile(file.name, file.language, streams, prints, base_words, base_syntax)


def _in_base(stream: TokenStream, runs: Grams | None, length: int) -> Used:
    if runs is None:
        return np.zeros(len(stream), dtype=np.bool_)
    return covered(grams(stream.tokens, length), runs, length, len(stream))


def compare(a: PreparedFile, b: PreparedFile, sizes: Sizes) -> FileComparison:
    """Scores and evidence of two files prepared with the same `sizes`."""
    words = tiles(a.streams.words.tokens, b.streams.words.tokens, sizes.winnowing.guarantee, a.used_words, b.used_words)
    syntax = syntax_tiles(a, b, sizes)
    evidence = [
        *(_evidence("words", tile, a.streams.words, b.streams.words) for tile in words),
        *(_evidence("syntax", tile, a.streams.syntax, b.streams.syntax) for tile in syntax),
    ]
    return FileComparison(
        a=a.name,
        b=b.name,
        words=words_score(a, b),
        syntax=share(sum(tile.length for tile in syntax), a.own_marks, b.own_marks),
        too_small=a.is_too_small or b.is_too_small,
        evidence=evidence,
    )


def words_score(a: PreparedFile, b: PreparedFile) -> TierScore:
    """Share of fingerprints in common."""
    first, second = a.fingerprints.distinct, b.fingerprints.distinct
    return share(len(np.intersect1d(first, second, assume_unique=True)), len(first), len(second))


def syntax_tiles(a: PreparedFile, b: PreparedFile, sizes: Sizes) -> list[Tile]:
    """Tiles of the marks of both."""
    first, second = a.streams.syntax.tokens, b.streams.syntax.tokens
    return tiles(first, second, sizes.minimum_tile, a.used_syntax, b.used_syntax)


def share(common: int, all_a: int, all_b: int) -> TierScore:
    """Shares of both and of each; 0 where there is nothing."""
    return TierScore(
        score=2 * common / (all_a + all_b) if common else 0.0,
        of_a=common / all_a if common else 0.0,
        of_b=common / all_b if common else 0.0,
    )


def _evidence(tier: Tier, tile: Tile, a: TokenStream, b: TokenStream) -> Evidence:
    (a_first, a_last), (b_first, b_last) = (
        (int(s.first_lines[at : at + tile.length].min()), int(s.last_lines[at : at + tile.length].max()))
        for s, at in ((a, tile.first), (b, tile.second))
    )
    return Evidence(
        tier=tier, a_first_line=a_first, a_last_line=a_last, b_first_line=b_first, b_last_line=b_last,
        tokens=tile.length,
    )  # fmt: skip
