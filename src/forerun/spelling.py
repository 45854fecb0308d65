"""Which row of a catalogue did somebody mean? Words as people type them in; one row, several or none out.

A row has words that must be typed ("4070", "ti", "super") and words that may be ("rtx", "16", "pcie"). A text means a
row when all its words are words of the row and it has all that must be. Where several rows remain, nobody guesses: the
caller lists them. Letters and digits that touch are told apart ("4070ti"), sizes lose their unit ("80 GB").

A text with a typing error means no row; `alike` finds what a message offers instead, by words that are one slip away.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from forerun.errors import UserNote

LONGEST_TEXT = 200
"""Characters of a name that are read."""
WORD = re.compile(r"\d+g\.\d+gb|\d+x\d+b|[a-z]\d+|\d+(?:\.\d+)?[bm](?![a-z])|[a-z]+|\d+(?:\.\d+)?")
"""A slice of a card, a mixture of experts, one letter and a number, a number of parameters, letters, or a number."""
SIZE = re.compile(r"(?<![\d.a-z])(\d+)\s*(?:gib|gb|g)(?![a-z.])")
WHOLE = re.compile(r"(?<=\d)\.0(?![\d.])")
"""What a version may lack: Granite 4 is Granite 4.0."""
COUNT = re.compile(
    r"^\s*(?:gpu )?(\d{1,3})\s*[x×*]\s*(?=[a-z]|\d{4})|^\s*([2-9]|16)\s+(?=[a-z]+\s*\d)|(?<=\d)\s*[x×*]\s*(\d{1,2})\s*$"
    r"|(?<=[a-z\d]):([1-9]|1[0-6])\s*$"
)
"""How many of them are meant: "2x T4", "8 × H100", "2x3090", "4090x2", Lambda's "gpu_1x_a100", Modal's "T4:4"."""

SHORTEST_SLIP = 3
"""Letters below which another word is another word: l4, t4 and a4 are cards."""
SIZED = re.compile(r"\d+(?:\.\d+)?[bm]")
WITHOUT_UNIT, SWAPPED, ADDED, STRUCK = 0.9, 0.85, 0.8, 0.7
"""What a word counts that lacks the "b" of a number of parameters, has two neighbours swapped, one letter too many or
too few, or another letter: chosen, so that of 4090 and 4060 the first is nearer to 4900."""


class NameNote(UserNote):
    """A name was taken for a row that is called otherwise."""


@dataclass(frozen=True)
class Spelled:
    """A row by the words of its name."""

    name: str
    required: frozenset[str]
    """Words without which another row is meant."""
    allowed: frozenset[str]
    """All its words, those above included."""


def words(text: str, noise: Iterable[str] = ()) -> frozenset[str]:
    """Words of a text in lower case, without those of `noise`."""
    return frozenset(ordered_words(text)) - frozenset(noise)


def ordered_words(text: str) -> list[str]:
    """Words of a text in lower case, in their order."""
    return WORD.findall(WHOLE.sub("", SIZE.sub(r"\1", text[:LONGEST_TEXT].lower().replace("_", " "))))


def without_count(text: str) -> tuple[str, int]:
    """The text without a number of cards before or behind it, and that number, 1 where there is none."""
    match = COUNT.search(text.lower().replace("_", " "))
    if match is None:
        return text, 1
    return text[: match.start()] or text[match.end() :], int(match[1] or match[2] or match[3] or match[4])


def meant_by(text: str, rows: Sequence[Spelled], noise: Iterable[str] = ()) -> list[str]:
    """Names of the rows that a text can mean, in the order of `rows`; none where a word of it is no row's."""
    typed = words(text, noise)
    if not typed:
        return []
    candidates = [row for row in rows if typed <= row.allowed]
    whole = [row for row in candidates if row.required <= typed]
    if not whole:
        return [row.name for row in candidates]
    most = max(len(row.required) for row in whole)
    return [row.name for row in whole if len(row.required) == most]


def holds(text: str, rows: Sequence[Spelled], noise: Iterable[str] = ()) -> list[str]:
    """Names of the rows that have every word of a search, or a word that begins with it."""
    typed = words(text, noise)
    return [
        row.name
        for row in rows
        if text.lower().strip() in row.name
        or (typed and all(any(word.startswith(t) for word in row.allowed) for t in typed))
    ]


def alike(text: str, rows: Sequence[Spelled], noise: Iterable[str] = (), count: int = 3) -> list[str]:
    """The names most like a text: those that share most of its words and add few, then those that look like it.

    A word of no row that one slip of the fingers makes of another counts for most of it; a number for one of
    parameters.
    """
    typed, target = words(text, noise), text[:LONGEST_TEXT].lower()
    near = _near(typed, frozenset().union(*(row.allowed for row in rows)))

    def likeness(row: Spelled) -> tuple[float, float]:
        beginning = row.name[: len(target) + 1]
        looks = max(SequenceMatcher(None, target, name).ratio() for name in (row.name, beginning))
        shared = sum(max((near[word].get(other, 0.0) for other in row.allowed), default=0.0) for word in typed)
        required = sum(max((near[word].get(other, 0.0) for word in typed), default=0.0) for other in row.required)
        return round(shared + 2 * required - len(row.required), 6), looks

    return [row.name for row in sorted(rows, key=likeness, reverse=True)[:count]]


def _near(typed: Iterable[str], every: frozenset[str]) -> dict[str, dict[str, float]]:
    """Typed words → words that they can stand for, and how much they count as those."""
    near: dict[str, dict[str, float]] = {}
    for word in typed:
        sizes = {f"{word}{unit}": WITHOUT_UNIT for unit in "bm" if f"{word}{unit}" in every}
        slips = {other: share for other in every if (share := closeness(word, other))} if word not in every else {}
        near[word] = {**sizes, **slips, word: 1.0}
    return near


def closeness(word: str, other: str) -> float:
    """How much of a word counts as another where one slip of the fingers makes it that; 0 for two other words.

    A slip swaps two neighbours, leaves one out, adds or strikes another key. Numbers of parameters have none: 7b is no
    8b.
    """
    if min(len(word), len(other)) < SHORTEST_SLIP or abs(len(word) - len(other)) > 1 or SIZED.fullmatch(other):
        return 0.0
    begin = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), min(len(word), len(other)))
    rest, goal = word[begin:], other[begin:]
    if rest[:2] == goal[1::-1] and rest[2:] == goal[2:]:
        return SWAPPED
    if rest[1:] == goal or rest == goal[1:]:
        return ADDED
    return STRUCK if rest[1:] == goal[1:] else 0.0
