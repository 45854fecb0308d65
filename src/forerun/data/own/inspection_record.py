"""What an inspection of somebody's data says: counts, lengths and findings; never a piece of the data's text."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from forerun.records import Record

Weight = Literal["stop", "warning", "note"]
DESIRABLE, UNDESIRABLE = "desirable", "undesirable"
"""Labels that rows of `unpaired-preference` are counted by."""
PERCENTILES = (5, 25, 50, 75, 95, 99, 100)


class DataFinding(Record):
    """One thing to know about the data."""

    weight: Weight
    """`stop`: training would be pointless or its score a lie."""
    kind: str
    text: str
    remedy: str


class ChatCount(Record):
    """What a model's chat template makes of a sample of rows."""

    lengths: list[int] = []
    """Tokens of each chat, of a preference those of its longer side, of a chat that is several rows those of the
    longest; none of rows that are no chats."""
    are_counted: bool = False
    """Whether the tokenizer was there; else they are estimated."""
    tools: int = 0
    """Rows that describe tools."""
    calls: int = 0
    """Rows that call some."""
    are_tools_read: bool | None = None
    """Whether the template writes descriptions of tools; None where that is not known."""
    are_calls_read: bool | None = None
    """Whether it writes calls; None where that is not known."""
    divided: int = 0
    """Chats that are several rows, as the template changes what it has written when a message comes."""
    rows: int = 0
    """Rows of all chats; 0 where that is not known."""


class Histogram(Record):
    """Lengths of rows, at percentiles; also each length with its rows, which is not written out.

    Of N tokens there are at most √(2 N) different lengths: 45,000 of a billion.
    """

    at: dict[int, int]
    """Percentile → length."""
    mean: float
    rows: dict[int, int] = Field(exclude=True, repr=False)
    """Length → rows of it."""

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> Self:
        """The percentiles of `lengths`, which are of some rows."""
        at = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
        values, counts = np.unique(lengths, return_counts=True)
        return cls(
            at={place: int(length) for place, length in zip(PERCENTILES, at, strict=True)},
            mean=float(lengths.mean()),
            rows=dict(zip(values.tolist(), counts.tolist(), strict=True)),
        )

    def above(self, length: int) -> float:
        """Share of the rows that are longer, counted."""
        return sum(rows for own, rows in self.rows.items() if own > length) / sum(self.rows.values())


class Inspection(Record):
    """What the pass saw."""

    rows: int
    characters: Histogram
    words: Histogram
    tokens: Histogram
    characters_per_token: float
    are_tokens_counted: bool
    """Whether a tokenizer counted them on the sample; else `estimated_tokens` of the characters."""
    has_template_tokens: bool = False
    """Whether what a chat template writes around the messages is among the tokens."""
    samples_a_row: float = 1.0
    """Rows of training that one row of the file is; more where a chat template writes chats anew."""
    parts: dict[str, int]
    split_hash: str
    left_training: int
    left_validation: int
    stated_parts: list[str]
    """Parts that the data state."""
    exact_duplicates: int
    """Rows whose texts came before."""
    contradictions: int
    """Texts that occur with different labels."""
    near_duplicates: int
    """Rows of the sample with a near one before them, exact ones not counted."""
    near_leaks: int
    """Judged rows of the sample that nearly are in the sample's training rows."""
    sample: int
    labels: dict[str, int]
    label_count: int
    unseen_labels: dict[str, list[str]]
    """Judged part → labels that training rows do not have."""
    languages: dict[str, int]
    html: int = 0
    """Rows of the sample with tags of HTML."""
    turns: int = 0
    """Rows of plain text of the sample in which a chat is written."""
    emails: int
    secrets: int
    signs: list[str]
    """What gives a label away, one sentence each."""
    telling_columns: dict[str, float]
    """Column that is not trained on → share of rows whose label its value alone tells."""
    shared_values: dict[str, float]
    """Column → share of the test rows whose value also is in training rows, where few values would be expected to."""
    repairs: dict[str, int]
    findings: list[DataFinding]

    def with_tokens(self, lengths: Sequence[int], *, are_counted: bool) -> Self:
        """The inspection with the tokens of the sample's chats, the template's among them."""
        tokens = Histogram.of(np.asarray(lengths))
        counted = {"are_tokens_counted": are_counted, "characters_per_token": self.characters.mean / tokens.mean}
        return self.model_copy(
            update={"tokens": tokens, "has_template_tokens": True, **(counted if are_counted else {})}
        )

    def truncated(self, sequence_length: int) -> float:
        """Share of rows with more tokens than `sequence_length`."""
        return self.tokens.above(sequence_length)
