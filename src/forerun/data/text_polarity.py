"""English film reviews and sentences from them, positive or negative: rows shipped with the package.

Sentences have some 25 tokens, whole reviews some 800, so that the two together are text of many lengths. Sources and
licence: `embedded/ATTRIBUTION.md`.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "val", "test"]
_EMBEDDED = Path(__file__).parent / "embedded" / "text_polarity.jsonl.gz"


@dataclass(frozen=True, slots=True)
class PolarText:
    """One review or sentence."""

    text: str
    is_positive: bool
    split: Split
    source: str
    """`sentence_polarity` or `movie_reviews`."""


def embedded() -> list[PolarText]:
    """All rows, in file order."""
    with gzip.open(_EMBEDDED, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [PolarText(row["text"], row["label"] == "pos", row["split"], row["source"]) for row in rows]
