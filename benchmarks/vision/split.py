"""Measured training steps of image models, and which of them may be fitted.

Whole families go to one half, by the hash of the family's name, fixed before the first forecast: a family is the module
of timm that defines the model (timm 1.0.31), so that variants of one architecture never stand on both sides. The test
half is scored only in aggregate (`benchmarks.vision`), and each scoring is noted in `history.csv`.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.split import in_test_half

ROWS = Path(__file__).parent / "rows" / "timm_train_rtx3090.csv"
LADDER = (1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2)
"""Batch sizes that the benchmark tries, from the top, until a step runs; the first is `FIRST`."""
FIRST = 512
"""Where the ladder of these rows begins: no row has a larger batch."""


@dataclass(frozen=True)
class VisionRow:
    """One measured training step."""

    model: str
    """Name in timm."""
    family: str
    """Module of timm that defines it."""
    layout: str
    """nchw or nhwc (channels last)."""
    micro_batch_size: int
    image_size: int
    """Pixels of one side."""
    step_seconds: float

    @property
    def id(self) -> str:
        """Model and layout."""
        return f"{self.model}-{self.layout}"

    @property
    def is_test(self) -> bool:
        """Whether the row belongs to the half that is never fitted."""
        return in_test_half(self.family)

    @property
    def next_batch_size(self) -> int | None:
        """The next larger batch of the ladder, at which the step failed; None at the top."""
        larger = [size for size in LADDER if self.micro_batch_size < size <= FIRST]
        return min(larger, default=None)


def load_rows() -> list[VisionRow]:
    """All rows, in the order of the file."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return [
            VisionRow(
                line["model"], line["family"], line["layout"], int(line["batch"]), int(line["pixels"]),
                float(line["milliseconds"]) / 1e3,
            )
            for line in csv.DictReader(file)
        ]  # fmt: skip


def subset(rows: list[VisionRow]) -> list[VisionRow]:
    """Rows of one model for each architecture: names that only differ in weights have the same trace.

    Same family, layout, batch and image size, and a step time within 1.5 %, is taken for the same architecture.
    """
    distinct: list[VisionRow] = []
    for row in rows:
        alike = (
            other.family == row.family
            and other.layout == row.layout
            and (other.micro_batch_size, other.image_size) == (row.micro_batch_size, row.image_size)
            and abs(other.step_seconds / row.step_seconds - 1) < 0.015
            for other in distinct
        )
        if not any(alike):
            distinct.append(row)
    return distinct
