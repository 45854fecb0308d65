"""Does something give the label away that has nothing to do with meaning? One word, how a text is laid out, a column.

For each sign, the share of texts that have it, by label: a sign that nearly all texts of one label have and hardly any
of the others (`package` in 89 % and 0.2 %) is what a model will learn first.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WORD = re.compile(r"\w+")
A_WORD = "the word "
MOST_LABELS = 20
LOOKED_AT = 4000
"""Characters of a text that are looked at."""
SUSPICIOUS = 0.6
"""Difference of shares from which a sign is reported."""
FORMATS = {
    "a tab": re.compile(r"\t"),
    "more than one line": re.compile(r"\S\s*\n\s*\S"),
    "blanks at the end of a line": re.compile(r"[ ]+(\n|$)"),
    "no capital letter": re.compile(r"\A[^A-Z]*\Z"),
    "a full stop at its end": re.compile(r"\.\s*\Z"),
    "a carriage return": re.compile(r"\r"),
    "letters beyond ASCII": re.compile(r"[^\x00-\x7f]"),
}
"""Ways to lay a text out, by what is reported of them."""


@dataclass(frozen=True)
class LabelSign:
    """Something that tells a label from all others."""

    sign: str
    label: str
    share_with_label: float
    """Of the texts with that label, how many have the sign."""
    share_of_others: float


def label_signs(texts: Sequence[str], labels: Sequence[str], most: int = 5) -> list[LabelSign]:
    """Signs that tell a label from the others in at least `SUSPICIOUS` of texts, the clearest first."""
    sizes = Counter(labels)
    if not 2 <= len(sizes) <= MOST_LABELS:
        return []
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for text, label in zip(texts, labels, strict=True):
        head = text[:LOOKED_AT]
        for word in set(WORD.findall(head)):
            counts[f"{A_WORD}{word!r}"][label] += 1
        for name, pattern in FORMATS.items():
            if pattern.search(head):
                counts[name][label] += 1
    signs = []
    for sign, by_label in counts.items():
        for label, size in sizes.items():
            others = len(texts) - size
            mine, theirs = by_label[label] / size, (sum(by_label.values()) - by_label[label]) / others
            if mine - theirs >= SUSPICIOUS or (len(sizes) > 2 and theirs - mine >= SUSPICIOUS):
                signs.append(LabelSign(sign, label, mine, theirs))
    return sorted(signs, key=lambda sign: -abs(sign.share_with_label - sign.share_of_others))[:most]


def sign_sentences(signs: Sequence[LabelSign]) -> list[str]:
    """A sentence a sign; words together in one, as they are often one fact."""
    by_label: defaultdict[str, list[LabelSign]] = defaultdict(list)
    for sign in signs:
        if sign.sign.startswith(A_WORD):
            by_label[sign.label].append(sign)
    words = "; ".join(_sentence(each) for each in by_label.values())
    others = [_sentence([sign]) for sign in signs if not sign.sign.startswith(A_WORD)]
    return [*([words] if words else []), *others]


def _sentence(signs: Sequence[LabelSign]) -> str:
    """What several signs of one label have in common."""
    names = [sign.sign.removeprefix(A_WORD) for sign in signs]
    what = f"the words {', '.join(names[:-1])} and {names[-1]} are" if len(signs) > 1 else f"{signs[0].sign} is"
    mine, theirs = ([getattr(sign, name) for sign in signs] for name in ("share_with_label", "share_of_others"))
    return f"{what} in {_shares(mine)} of texts labelled {signs[0].label!r} and in {_shares(theirs)} of the others"


def _shares(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"


def columns_that_tell(
    columns: Mapping[str, Iterable[str | None]], labels: Sequence[str], least: float = 0.95
) -> dict[str, float]:
    """Columns whose value alone tells the label of at least `least` of all rows, and how many; values come again."""
    if len(set(labels)) < 2:
        return {}
    majority = Counter(labels).most_common(1)[0][1] / len(labels)
    shares = {}
    for name, values in columns.items():
        table: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
        for value, label in zip(values, labels, strict=True):
            table[value][label] += 1
        right = sum(by_label.most_common(1)[0][1] for by_label in table.values()) / len(labels)
        if len(table) <= len(labels) / 5 and right >= max(least, (1 + majority) / 2):
            shares[name] = right
    return shares
