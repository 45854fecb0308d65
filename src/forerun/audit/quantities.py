"""What did the author mean by "~6-8 h"? Numbers, times and sizes as people write them, and when two of them agree.

A quantity is a range from `low` to `high` in seconds, bytes or plain numbers (percent as fractions), with the half of
its last printed digit. Two quantities agree within that half digit or within a share: `EXACT`, or `ABOUT` where the
author wrote "~". A limit ("< 2 h", "≥ 0.88") is a range without an end.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from forerun.settings.schema import Section
from forerun.units import GIB, GIGA, HOUR, KIB, KILO, MEGA, MIB, MICRO, MILLI, MINUTE, TERA, format_seconds

EXACT, ABOUT = 0.02, 0.05
"""Shares by which a stated number and one of "about" may differ from the right one; stated."""
DAY = 24 * HOUR
NUMBER_UNITS = {
    "": 1.0, "x": 1.0, "×": 1.0, "%": 0.01, "k": KILO, "K": KILO, "M": MEGA, "B": GIGA, "T": TERA,
}  # fmt: skip
TIME_UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "us": MICRO, "µs": MICRO, "ms": MILLI, "min": MINUTE, "minute": MINUTE,
    "h": HOUR, "hr": HOUR, "hour": HOUR, "d": DAY, "day": DAY,
}  # fmt: skip
SIZE_UNITS = {"B": 1.0, "KB": KILO, "MB": MEGA, "GB": GIGA, "TB": TERA, "KiB": KIB, "MiB": MIB, "GiB": GIB}
SIZE_UNITS |= {"byte": 1.0}
ABOUT_SIGNS, BELOW, ABOVE = ("~", "≈"), ("<=", "<", "≤"), (">=", ">", "≥")
_NUMBER = r"[-+]?\d[\d,_]*(?:\.\d+)?(?:[eE][-+]?\d+)?"
_QUANTITY = re.compile(
    rf"(?P<sign>~|≈|<=|<|≤|>=|>|≥)?\s*(?P<low>{_NUMBER})\s*(?P<lowunit>[^\W\d_]*|%|×)"
    rf"(?:\s*(?:-|–|—|to|…|\.\.)\s*~?(?P<high>{_NUMBER})\s*(?P<unit>[^\W\d_]*|%|×))?\+?"
)

Agreement = Literal["agree", "partly", "apart"]
AGREEMENTS: tuple[Agreement, ...] = ("agree", "partly", "apart")
"""Agreements from best to worst."""


class Quantity(Section):
    """A range with the precision that it was written with."""

    low: float
    high: float
    half_unit: float = 0.0
    about: bool = False
    text: str = ""

    @property
    def tolerance(self) -> float:
        """Share of a value within which another one is the same."""
        return ABOUT if self.about else EXACT

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends; of a limit twice the end that it has."""
        return (self.middle, self.middle) if math.isinf(self.low) or math.isinf(self.high) else (self.low, self.high)

    @property
    def middle(self) -> float:
        """Middle of the range; of a limit the end that it has."""
        return self.low if math.isinf(self.high) else self.high if math.isinf(self.low) else (self.low + self.high) / 2


def exactly(value: float, text: str = "") -> Quantity:
    """A value that was computed or measured."""
    return Quantity(low=value, high=value, text=text or f"{value:g}")


def between(low: float, high: float) -> Quantity:
    """A range that was computed."""
    return Quantity(low=min(low, high), high=max(low, high))


def compare_quantities(
    claimed: Quantity, low: float, high: float | None = None, share: float | None = None
) -> Agreement:
    """How `claimed` stands to the right range (`low` to `high`): one holds the other, they overlap, or lie apart."""
    high = low if high is None else high
    share = claimed.tolerance if share is None else share

    def slack(value: float) -> float:
        return 0.0 if math.isinf(value) else max(claimed.half_unit, abs(value) * share)

    lowest, highest = claimed.low - slack(claimed.low), claimed.high + slack(claimed.high)
    if lowest > high or highest < low:
        return "apart"
    holds = lowest <= low and high <= highest
    is_held = low - slack(low) <= claimed.low and claimed.high <= high + slack(high)
    return "agree" if holds or is_held else "partly"


def compare_sizes(claimed: Quantity, low: float, high: float | None = None, share: float | None = None) -> Agreement:
    """`compare_quantities` for bytes: people write GB for GiB, so the better of both readings counts."""
    high = low if high is None else high
    readings = [compare_quantities(claimed, low * unit, high * unit, share) for unit in (1.0, GIGA / GIB)]
    return AGREEMENTS[min(map(AGREEMENTS.index, readings))]


def parse_quantity(value: Any, units: Mapping[str, float], example: str) -> Quantity:
    """A quantity from a number, two numbers, or text.

    Raises:
        ValueError: it is none of these, or lacks its unit.
    """
    if isinstance(value, Quantity):
        return value
    if isinstance(value, list | tuple) and len(value) == 2:
        ends = [parse_quantity(end, units, example) for end in value]
        low, high = sorted(ends, key=lambda end: end.low)
        return Quantity(
            low=low.low, high=high.high, half_unit=max(low.half_unit, high.half_unit),
            about=low.about or high.about, text=f"{low.text} to {high.text}",
        )  # fmt: skip
    match = _QUANTITY.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"a quantity such as {example}")
    return _from_match(match, units, example, str(value))


def _from_match(match: re.Match[str], units: Mapping[str, float], example: str, text: str) -> Quantity:
    named = match["unit"] or match["lowunit"] or ""
    factors = [_factor(match["lowunit"] or named, units, example), _factor(named, units, example)]
    low = _value(match["low"]) * factors[0]
    high = low if match["high"] is None else _value(match["high"]) * factors[1]
    numbers = match["low"], match["high"] or match["low"]
    half = max(_half_unit(each, factor) for each, factor in zip(numbers, factors, strict=True))
    sign = match["sign"] or ""
    if sign in BELOW:
        low = -math.inf
    elif sign in ABOVE:
        high = math.inf
    half = 0.0 if sign in (*BELOW, *ABOVE) else half
    if low > high:
        raise ValueError(f"the lower number first, as in {example}")
    return Quantity(low=low, high=high, half_unit=half, about=sign in ABOUT_SIGNS, text=text)


def _factor(unit: str, units: Mapping[str, float], example: str) -> float:
    for spelling in (unit, unit.removesuffix("s")):
        if spelling in units:
            return units[spelling]
    raise ValueError(f"a quantity with its unit, such as {example}")


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _half_unit(text: str, factor: float) -> float:
    """Half of the last printed digit; nothing for whole numbers without a larger unit, which are counts."""
    digits, _, exponent = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.0 if not decimals and factor == 1 else 0.5 * factor * 10.0 ** (int(exponent or 0) - decimals)


def show_bytes(count: float) -> str:
    """Bytes as claims have them, in decimal GB, with GiB beside it."""
    return f"{count / GIGA:,.2f} GB ({count / GIB:,.2f} GiB)"


def show_seconds(low: float, high: float | None = None) -> str:
    """A time or a range of times."""
    return format_seconds(low) if high is None or high == low else f"{format_seconds(low)} to {format_seconds(high)}"


def show_number(low: float, high: float | None = None) -> str:
    """A number or a range of numbers, with four digits or all of a whole number."""
    if high is not None and f"{high:.4g}" != f"{low:.4g}":
        return f"{show_number(low)} to {show_number(high)}"
    return f"{low:,.0f}" if float(low).is_integer() or abs(low) >= KILO else f"{low:.4g}"


Number = Annotated[Quantity, BeforeValidator(lambda v: parse_quantity(v, NUMBER_UNITS, "'2.5', '2-3x', '~85M', '40%'"))]
Duration = Annotated[Quantity, BeforeValidator(lambda v: parse_quantity(v, TIME_UNITS, "'45 min', '~6-8 h', '1.2 s'"))]
Size = Annotated[Quantity, BeforeValidator(lambda v: parse_quantity(v, SIZE_UNITS, "'4.5 GB', '2-3 GB', '28 GiB'"))]
