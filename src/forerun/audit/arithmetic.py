"""Claims that arithmetic alone decides: sums, products, ratios, changes, and one document that says two things."""

import math
from typing import Literal

from pydantic import Field

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, finding, verdict_of
from forerun.audit.quantities import (
    NUMBER_UNITS,
    SIZE_UNITS,
    TIME_UNITS,
    Agreement,
    Quantity,
    agreement,
    parse_quantity,
    show_bytes,
    show_number,
    show_seconds,
    size_agreement,
)
from forerun.units import format_percent

Unit = Literal["number", "time", "size"]
UNITS = {
    "number": (NUMBER_UNITS, "'2.5', '2-3', '40%'"), "time": (TIME_UNITS, "'45 min', '6-8 h'"),
    "size": (SIZE_UNITS, "'4.5 GB'"),
}  # fmt: skip
Written = int | float | str | list[int | float | str]


def read(written: Written, unit: Unit, field: str) -> Quantity:
    """A quantity of a unit.

    Raises:
        ValueError: it is none.
    """
    try:
        return parse_quantity(written, *UNITS[unit])
    except ValueError as error:
        raise ValueError(f"{field}: {error}; found {written!r}") from error


def shown(low: float, high: float, unit: Unit) -> str:
    """A computed range in its unit."""
    if unit == "time":
        return show_seconds(low, high)
    if unit == "size":
        return show_bytes(low) if low == high else f"{show_bytes(low)} to {show_bytes(high)}"
    return show_number(low, high)


def compared(claimed: Quantity, low: float, high: float, unit: Unit) -> Agreement:
    """How a claim in a unit stands to a computed range; whole numbers are counts, which are exact."""
    if unit == "size":
        return size_agreement(claimed, low, high)
    counts = (claimed.low, claimed.high, low, high)
    are_counts = unit == "number" and not (claimed.about or claimed.half_unit) and all(map(_is_count, counts))
    return agreement(claimed, low, high, share=0.0 if are_counts else None)


def _is_count(value: float) -> bool:
    return math.isfinite(value) and float(value).is_integer()


class Sum(Check):
    """Parts and the total that they are said to make."""

    kind: Literal["sum"]
    parts: dict[str, Written] | list[Written]
    """Named, or a list."""
    counts: list[float] = []
    """How often each part counts, where not once."""
    total: Written
    unit: Unit = "number"


def check_sum(claim: Sum, context: Context) -> Finding:
    """R03: the ends of the parts' ranges add up to those of the total."""
    written = list(claim.parts.values()) if isinstance(claim.parts, dict) else claim.parts
    parts = [read(part, claim.unit, f"parts[{number}]") for number, part in enumerate(written)]
    counts = claim.counts or [1.0] * len(parts)
    if len(counts) != len(parts):
        raise ValueError(f"counts: one for each of the {len(parts)} parts; found {len(counts)}")
    low = sum(part.low * count for part, count in zip(parts, counts, strict=True))
    high = sum(part.high * count for part, count in zip(parts, counts, strict=True))
    total = read(claim.total, claim.unit, "total")
    pairs = zip(written, counts, strict=True)
    formula = " + ".join(f"{_text(each)}" if count == 1 else f"{count:g} x {_text(each)}" for each, count in pairs)
    found = compared(total, low, high, claim.unit)
    said = "" if found == "agree" else f"the parts do not make {_text(claim.total)}"
    return finding("R03", verdict_of(found), right=shown(low, high, claim.unit), formula=formula, said=said)


class Product(Check):
    """Factors and what they are said to make."""

    kind: Literal["product"]
    factors: list[Written]
    claimed: Written
    unit: Unit = "number"
    """Of the first factor and of what is claimed; the others are numbers."""


def check_product(claim: Product, context: Context) -> Finding:
    """R03: the product of the ends of all ranges."""
    low = high = 1.0
    for number, factor in enumerate(claim.factors):
        each = read(factor, "number" if number else claim.unit, f"factors[{number}]")
        low, high = low * each.low, high * each.high
    claimed = read(claim.claimed, claim.unit, "claimed")
    found = compared(claimed, low, high, claim.unit)
    said = "" if found == "agree" else f"not {_text(claim.claimed)}"
    formula = " x ".join(_text(factor) for factor in claim.factors)
    return finding("R03", verdict_of(found), right=shown(low, high, claim.unit), formula=formula, said=said)


class Ratio(Check):
    """One quantity over another: a speed-up, a share, a number of steps."""

    kind: Literal["ratio"]
    numerator: Written
    denominator: Written
    claimed: Written
    unit: Unit = "number"
    """Of numerator and denominator."""


def check_ratio(claim: Ratio, context: Context) -> Finding:
    """R03: from the smallest over the largest to the largest over the smallest, or end by end where that is meant."""
    over, under = read(claim.numerator, claim.unit, "numerator"), read(claim.denominator, claim.unit, "denominator")
    if under.low <= 0:
        raise ValueError(f"denominator: above 0; found {claim.denominator!r}")
    low, high = over.low / under.high, over.high / under.low
    claimed = read(claim.claimed, "number", "claimed")
    found = agreement(claimed, low, high)
    said = {"agree": "", "partly": "the ranges only overlap", "apart": f"not {_text(claim.claimed)}"}[found]
    formula = f"{_text(claim.numerator)} / {_text(claim.denominator)}"
    return finding("R03", verdict_of(found), right=show_number(low, high), formula=formula, said=said)


class ChangeClaim(Check):
    """Something before and after, and what is said of the difference."""

    kind: Literal["change"]
    before: Written
    after: Written
    said: Literal["smaller", "larger", "same"]
    factor: Written | None = None
    """Before over after where it is said to be smaller, after over before where larger."""
    unit: Unit = "number"


def check_change(claim: ChangeClaim, context: Context) -> Finding:
    """R16: what is reduced is smaller after; what is enlarged is larger."""
    before, after = read(claim.before, claim.unit, "before"), read(claim.after, claim.unit, "after")
    ratio = after.middle / before.middle
    really = (
        "same" if abs(ratio - 1) <= max(before.tolerance, after.tolerance) else "larger" if ratio > 1 else "smaller"
    )
    right = f"{really}: {format_percent(ratio - 1, signed=True)}"
    formula = f"{_text(claim.after)} / {_text(claim.before)} = {show_number(ratio)}"
    if really != claim.said:
        return finding("R16", "wrong", right=right, formula=formula, said=f"said to be {claim.said}")
    if claim.factor is not None:
        factor = 1 / ratio if claim.said == "smaller" else ratio
        found = agreement(read(claim.factor, "number", "factor"), factor)
        said = "" if found == "agree" else f"not {_text(claim.factor)}"
        return finding("R16", verdict_of(found), right=f"{show_number(factor)}x", formula=formula, said=said)
    return finding("R16", "consistent", right=right, formula=formula)


class Agree(Check):
    """One quantity that a document states in several places."""

    kind: Literal["agree"]
    quantity: str
    """What it is a statement of."""
    stated: dict[str, Written] = Field(min_length=2)
    """Place → what it says there: numbers, or words."""
    unit: Unit = "number"


def check_agree(claim: Agree, context: Context) -> Finding:
    """R20: all places agree with the most exact one; words must be the same."""
    try:
        stated = {place: read(value, claim.unit, f"stated.{place}") for place, value in claim.stated.items()}
    except ValueError:
        return _check_words(claim)
    place, exact = min(stated.items(), key=lambda item: (item[1].about, item[1].high - item[1].low, item[1].half_unit))
    apart = [
        f"{_text(claim.stated[other])} ({other})" for other, value in stated.items()
        if compared(value, exact.low, exact.high, claim.unit) == "apart"
    ]  # fmt: skip
    right = f"{shown(exact.low, exact.high, claim.unit)} ({place})"
    said = f"the document also says {', '.join(apart)}" if apart else ""
    return finding("R20", "wrong" if apart else "consistent", right=right, formula=claim.quantity, said=said)


def _check_words(claim: Agree) -> Finding:
    words = {str(value).strip().lower() for value in claim.stated.values()}
    right = ", ".join(f"{place}: {value}" for place, value in claim.stated.items())
    verdict, said = ("consistent", "") if len(words) == 1 else ("wrong", "the document says both")
    return finding("R20", verdict, right=right, formula=claim.quantity, said=said)


def _text(written: Written) -> str:
    return " to ".join(map(str, written)) if isinstance(written, list) else str(written)


CHECKS = {Sum: check_sum, Product: check_product, Ratio: check_ratio, ChangeClaim: check_change, Agree: check_agree}
