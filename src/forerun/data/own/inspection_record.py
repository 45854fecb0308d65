"""What an inspection of somebody's data says: counts, lengths and findings; never a piece of the data's text."""

from typing import Literal

import numpy as np

from forerun.records import Record

Weight = Literal["stop", "warning", "note"]


class DataFinding(Record):
    """One thing to know about the data."""

    weight: Weight
    """`stop`: training would be pointless or its score a lie."""
    kind: str
    text: str
    remedy: str


class Histogram(Record):
    """Lengths of rows, at percentiles."""

    at: dict[int, int]
    """Percentile → length."""
    mean: float


class Inspection(Record):
    """What the pass saw."""

    rows: int
    characters: Histogram
    words: Histogram
    tokens: Histogram
    characters_per_token: float
    are_tokens_counted: bool
    """Whether a tokenizer counted them on the sample; else they are characters divided by `CHARACTERS_A_TOKEN`."""
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

    def truncated(self, sequence_length: int) -> float:
        """Share of rows with more tokens than `sequence_length`, between the percentiles that are known."""
        lengths = sorted((length, place) for place, length in self.tokens.at.items())
        below = float(np.interp(sequence_length, [length for length, _ in lengths], [place for _, place in lengths]))
        return 1 - below / 100 if sequence_length < lengths[-1][0] else 0.0
