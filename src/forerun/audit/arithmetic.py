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
    compare_quantities,
    compare_sizes,
    parse_quantity,
    show_bytes,
    show_number,
    show_seconds,
)
from forerun.units import format_percent

Unit = Literal["number", "time", "size"]
UNITS = {
    "number": (NUMBER_UNITS, "'2.5', '2-3', '40%'"), "time": (TIME_UNITS, "'45 min', '6-8 h'"),
    "size": (SIZE_UNITS, "'4.5 GB'"),
}  # fmt: skip
RawQuantity = int | float | str | list[int | float | str]


def read_quantity(value: RawQuantity, unit: Unit, field: str) -> Quantity:
    """The quantity that a claims file states, parsed in its unit.

    Raises:
        ValueError: it is none.
    """
    try:
        return parse_quantity(value, *UNITS[unit])
    except ValueError as error:
        raise ValueError(f"{field}: {error}; found {value!r}") from error


def show_range(low: float, high: float, unit: Unit) -> str:
    """A computed range as text in its unit."""
    if unit == "time":
        return show_seconds(low, high)
    if unit == "size":
        return show_bytes(low) if low == high else f"{show_bytes(low)} to {show_bytes(high)}"
    return show_number(low, high)


def compare_in_unit(claimed: Quantity, low: float, high: float, unit: Unit) -> Agreement:
    """How a claim in a unit stands to a computed range; whole numbers are counts, which are exact."""
    if unit == "size":
        return compare_sizes(claimed, low, high)
    counts = (claimed.low, claimed.high, low, high)
    are_counts = unit == "number" and not (claimed.about or claimed.half_unit) and all(map(_is_count, counts))
    return compare_quantities(claimed, low, high, share=0.0 if are_counts else None)


def _is_count(value: float) -> bool:
    return math.isfinite(value) and float(value).is_integer()


class Sum(Check):
    """Parts and the total that they are said to make."""

    kind: Literal["sum"]
    parts: dict[str, RawQuantity] | list[RawQuantity]
    """The parts, by name or as a list."""
    counts: list[float] = []
    """How often each part counts; once each without it."""
    total: RawQuantity
    unit: Unit = "number"


def check_sum(claim: Sum, context: Context) -> Finding:
    """R03: the ends of the parts' ranges add up to those of the total."""
    values = list(claim.parts.values()) if isinstance(claim.parts, dict) else claim.parts
    parts = [read_quantity(part, claim.unit, f"parts[{number}]") for number, part in enumerate(values)]
    counts = claim.counts or [1.0] * len(parts)
    if len(counts) != len(parts):
        raise ValueError(f"counts: one for each of the {len(parts)} parts; found {len(counts)}")
    low = sum(part.low * count for part, count in zip(parts, counts, strict=True))
    high = sum(part.high * count for part, count in zip(parts, counts, strict=True))
    total = read_quantity(claim.total, claim.unit, "total")
    pairs = zip(values, counts, strict=True)
    formula = " + ".join(f"{_text(each)}" if count == 1 else f"{count:g} x {_text(each)}" for each, count in pairs)
    agreement = compare_in_unit(total, low, high, claim.unit)
    remark = "" if agreement == "agree" else f"the parts do not make {_text(claim.total)}"
    return finding(
        "R03", verdict_of(agreement), right=show_range(low, high, claim.unit), formula=formula, remark=remark
    )


class Product(Check):
    """Factors and what they are said to make."""

    kind: Literal["product"]
    factors: list[RawQuantity]
    claimed: RawQuantity
    unit: Unit = "number"
    """Unit of the first factor and of `claimed`; the other factors are numbers."""


def check_product(claim: Product, context: Context) -> Finding:
    """R03: the product of the ends of all ranges."""
    low = high = 1.0
    for number, factor in enumerate(claim.factors):
        each = read_quantity(factor, "number" if number else claim.unit, f"factors[{number}]")
        low, high = low * each.low, high * each.high
    claimed = read_quantity(claim.claimed, claim.unit, "claimed")
    agreement = compare_in_unit(claimed, low, high, claim.unit)
    remark = "" if agreement == "agree" else f"not {_text(claim.claimed)}"
    formula = " x ".join(_text(factor) for factor in claim.factors)
    return finding(
        "R03", verdict_of(agreement), right=show_range(low, high, claim.unit), formula=formula, remark=remark
    )


class Ratio(Check):
    """One quantity over another: a speed-up, a share, a number of steps."""

    kind: Literal["ratio"]
    numerator: RawQuantity
    denominator: RawQuantity
    claimed: RawQuantity
    unit: Unit = "number"
    """Unit of numerator and denominator."""


def check_ratio(claim: Ratio, context: Context) -> Finding:
    """R03: from the smallest over the largest to the largest over the smallest, or end by end where that is meant."""
    over, under = (
        read_quantity(claim.numerator, claim.unit, "numerator"),
        read_quantity(claim.denominator, claim.unit, "denominator"),
    )
    if under.low <= 0:
        raise ValueError(f"denominator: above 0; found {claim.denominator!r}")
    low, high = over.low / under.high, over.high / under.low
    claimed = read_quantity(claim.claimed, "number", "claimed")
    agreement = compare_quantities(claimed, low, high)
    remark = {"agree": "", "partly": "the ranges only overlap", "apart": f"not {_text(claim.claimed)}"}[agreement]
    formula = f"{_text(claim.numerator)} / {_text(claim.denominator)}"
    return finding("R03", verdict_of(agreement), right=show_number(low, high), formula=formula, remark=remark)


class ChangeClaim(Check):
    """Something before and after, and what is said of the difference."""

    kind: Literal["change"]
    before: RawQuantity
    after: RawQuantity
    said: Literal["smaller", "larger", "same"]
    factor: RawQuantity | None = None
    """Before over after where it is said to be smaller, after over before where larger."""
    unit: Unit = "number"


def check_change(claim: ChangeClaim, context: Context) -> Finding:
    """R16: what is reduced is smaller after; what is enlarged is larger."""
    before, after = read_quantity(claim.before, claim.unit, "before"), read_quantity(claim.after, claim.unit, "after")
    ratio = after.middle / before.middle
    really = (
        "same" if abs(ratio - 1) <= max(before.tolerance, after.tolerance) else "larger" if ratio > 1 else "smaller"
    )
    right = f"{really}: {format_percent(ratio - 1, signed=True)}"
    formula = f"{_text(claim.after)} / {_text(claim.before)} = {show_number(ratio)}"
    if really != claim.said:
        return finding("R16", "wrong", right=right, formula=formula, remark=f"said to be {claim.said}")
    if claim.factor is not None:
        factor = 1 / ratio if claim.said == "smaller" else ratio
        agreement = compare_quantities(read_quantity(claim.factor, "number", "factor"), factor)
        remark = "" if agreement == "agree" else f"not {_text(claim.factor)}"
        return finding("R16", verdict_of(agreement), right=f"{show_number(factor)}x", formula=formula, remark=remark)
    return finding("R16", "consistent", right=right, formula=formula)


class Agree(Check):
    """One quantity that a document states in several places."""

    kind: Literal["agree"]
    quantity: str
    """Name of the quantity that the places state."""
    stated: dict[str, RawQuantity] = Field(min_length=2)
    """Place → what it says there: numbers, or words."""
    unit: Unit = "number"


def check_agree(claim: Agree, context: Context) -> Finding:
    """R20: all places agree with the most exact one; words must be the same."""
    try:
        stated = {place: read_quantity(value, claim.unit, f"stated.{place}") for place, value in claim.stated.items()}
    except ValueError:
        return _check_words(claim)
    place, exact = min(stated.items(), key=lambda item: (item[1].about, item[1].high - item[1].low, item[1].half_unit))
    apart = [
        f"{_text(claim.stated[other])} ({other})" for other, value in stated.items()
        if compare_in_unit(value, exact.low, exact.high, claim.unit) == "apart"
    ]  # fmt: skip
    right = f"{show_range(exact.low, exact.high, claim.unit)} ({place})"
    remark = f"the document also says {', '.join(apart)}" if apart else ""
    return finding("R20", "wrong" if apart else "consistent", right=right, formula=claim.quantity, remark=remark)


def _check_words(claim: Agree) -> Finding:
    words = {str(value).strip().lower() for value in claim.stated.values()}
    right = ", ".join(f"{place}: {value}" for place, value in claim.stated.items())
    verdict, remark = ("consistent", "") if len(words) == 1 else ("wrong", "the document says both")
    return finding("R20", verdict, right=right, formula=claim.quantity, remark=remark)


def _text(value: RawQuantity) -> str:
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


CHECKS = {Sum: check_sum, Product: check_product, Ratio: check_ratio, ChangeClaim: check_change, Agree: check_agree}
