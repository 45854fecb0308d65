"""How well are spans found? Precision, recall and F1 of whole spans in tags as of CoNLL: B-, I-, and of BIOES E-, S-.

A span is a run of words with one type that begins where B- or S- stands, where the type changes, or where I- follows
O; it counts as found only with its first word, last word and type (seqeval's default mode, and CoNLL-2000's script).
Tags without a prefix are types of words: each word that is not `O` is a span of its own. So it is with tags that are
numbers without names, of which the most frequent one stands for `O`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.data.own.labels import have_no_names

Span = tuple[int, int, str]
OUTSIDE = "O"
PREFIXES = ("B-", "I-", "E-", "S-", "L-", "U-")
DRAWS = 1000


def outside_of(names: Sequence[str], tags: Iterable[str]) -> str:
    """The tag of words in no span: of numbers without names the most frequent of `tags`, which are read for them."""
    return Counter(tags).most_common(1)[0][0] if have_no_names(names) else OUTSIDE


def spans_of(tags: Sequence[str], outside: str = OUTSIDE) -> list[Span]:
    """(first word, word after the last, type) of each span."""
    spans: list[Span] = []
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, outside]):
        prefix, own = (tag[:1], tag[2:]) if tag.startswith(PREFIXES) else ("S", tag)
        is_outside = tag == outside
        continues = bool(kind) and not is_outside and own == kind and prefix in "IEL"
        if kind and not continues:
            spans.append((begin, place, kind))
            kind = ""
        if not is_outside and not continues:
            begin, kind = place, own
        if kind and prefix in "ELSU" and not is_outside:
            spans.append((begin, place + 1, kind))
            kind = ""
    return spans


@dataclass(frozen=True)
class SpanCounts:
    """Spans of each sentence: hits, predicted, true."""

    hits: np.ndarray
    predicted: np.ndarray
    true: np.ndarray

    @property
    def scores(self) -> dict[str, float]:
        """Precision, recall and F1 over all spans."""
        return _scores(int(self.hits.sum()), int(self.predicted.sum()), int(self.true.sum()))

    def interval(self) -> tuple[float, float]:
        """Ends of the 95 % interval of F1, over sentences drawn again."""
        draws = np.random.default_rng(0).integers(0, len(self.hits), (DRAWS, len(self.hits)))
        both = (self.predicted + self.true)[draws].sum(axis=1)
        low, high = np.quantile(2 * self.hits[draws].sum(axis=1) / np.maximum(1, both), [0.025, 0.975])
        return float(low), float(high)


def f1_difference(first: SpanCounts, second: SpanCounts) -> tuple[float, float]:
    """Ends of the 95 % interval of `first`'s F1 minus `second`'s, over sentences drawn again."""
    draws = np.random.default_rng(0).integers(0, len(first.hits), (DRAWS, len(first.hits)))
    drawn_scores = [
        2 * own.hits[draws].sum(axis=1) / np.maximum(1, (own.predicted + own.true)[draws].sum(axis=1))
        for own in (first, second)
    ]
    low, high = np.quantile(drawn_scores[0] - drawn_scores[1], [0.025, 0.975])
    return float(low), float(high)


def count_spans(answers: Sequence[Sequence[str]], truth: Sequence[Sequence[str]], outside: str = OUTSIDE) -> SpanCounts:
    """Counts of every sentence; both sides have a tag for each word."""
    rows = np.zeros((len(truth), 3), dtype=np.int64)
    for number, (answer, tags) in enumerate(zip(answers, truth, strict=True)):
        own, true = set(spans_of(answer, outside)), set(spans_of(tags, outside))
        rows[number] = len(own & true), len(own), len(true)
    return SpanCounts(*rows.T)


def scores_by_type(
    answers: Sequence[Sequence[str]], truth: Sequence[Sequence[str]], outside: str = OUTSIDE
) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and number of true spans of each type, the most frequent first."""
    hits, predicted, true = Counter[str](), Counter[str](), Counter[str]()
    for answer, tags in zip(answers, truth, strict=True):
        own, other = set(spans_of(answer, outside)), set(spans_of(tags, outside))
        hits.update(kind for *_, kind in own & other)
        predicted.update(kind for *_, kind in own)
        true.update(kind for *_, kind in other)
    kinds = sorted({*predicted, *true}, key=lambda kind: (-true[kind], kind))
    return {kind: {**_scores(hits[kind], predicted[kind], true[kind]), "spans": float(true[kind])} for kind in kinds}


def _scores(hits: int, predicted: int, true: int) -> dict[str, float]:
    return {
        "precision": hits / predicted if predicted else 0.0,
        "recall": hits / true if true else 0.0,
        "f1": 2 * hits / (predicted + true) if predicted + true else 0.0,
    }
