"""Which statements about the lengths of samples exclude each other."""

from typing import Literal

TooLong = Literal["cut", "drop"]


def length_conflicts(limit: int, mean: float | None, too_long: TooLong, source: str | None) -> list[tuple[bool, str]]:
    """Whether each rule is broken, and what to say then."""
    return [
        (
            mean is not None and mean > limit,
            f"data.mean_tokens: at most batch.sequence_length, to which samples are cut; found {mean} with "
            f"sequence_length={limit}. Raise sequence_length or give the mean after cutting.",
        ),
        (
            too_long == "drop" and (mean is None or source is not None),
            "data.too_long: `drop` says how lengths lie around data.mean_tokens; found "
            + ("a data.source, whose lengths are known. " if source is not None else "no data.mean_tokens. ")
            + "Give the mean of the samples that are left, without a source, or leave too_long out.",
        ),
    ]
