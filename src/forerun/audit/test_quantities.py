"""Quantities as people write them."""

import math

import pytest

from forerun.audit.quantities import (
    NUMBER_UNITS,
    SIZE_UNITS,
    TIME_UNITS,
    compare_quantities,
    compare_sizes,
    parse_quantity,
    show_bytes,
    show_number,
)
from forerun.units import GIB, GIGA


@pytest.mark.parametrize(
    ("text", "units", "low", "high", "about"),
    [
        ("~6-8 h", TIME_UNITS, 21600, 28800, True),
        ("45 min", TIME_UNITS, 2700, 2700, False),
        ("30-60 s", TIME_UNITS, 30, 60, False),
        ("25 min to 1 h", TIME_UNITS, 1500, 3600, False),
        ("11.68 ms", TIME_UNITS, 0.01168, 0.01168, False),
        ("3 hours", TIME_UNITS, 10800, 10800, False),
        ("4.5 GB", SIZE_UNITS, 4.5e9, 4.5e9, False),
        ("2-3 GiB", SIZE_UNITS, 2 * GIB, 3 * GIB, False),
        ("85M", NUMBER_UNITS, 85e6, 85e6, False),
        ("40%", NUMBER_UNITS, 0.4, 0.4, False),
        ("88–95 %", NUMBER_UNITS, 0.88, 0.95, False),
        ("2.5e-4", NUMBER_UNITS, 2.5e-4, 2.5e-4, False),
        ("304,000", NUMBER_UNITS, 304000, 304000, False),
        ("3.6×", NUMBER_UNITS, 3.6, 3.6, False),
        ("< 800", NUMBER_UNITS, -math.inf, 800, False),
        ("≥ 0.88", NUMBER_UNITS, 0.88, math.inf, False),
        (17, NUMBER_UNITS, 17, 17, False),
        (["-15%", "-10%"], NUMBER_UNITS, -0.15, -0.10, False),
        ([2, 3], NUMBER_UNITS, 2, 3, False),
    ],
)
def test_written_quantities(text, units, low, high, about):
    quantity = parse_quantity(text, units, "x")
    assert (quantity.low, quantity.high) == (pytest.approx(low), pytest.approx(high))
    assert quantity.about is about


@pytest.mark.parametrize(
    ("text", "units"),
    [("soon", TIME_UNITS), ("45", TIME_UNITS), ("4.5", SIZE_UNITS), ("3 h", NUMBER_UNITS), ("8-6 h", TIME_UNITS), (True, NUMBER_UNITS)],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_an_example(text, units):
    with pytest.raises(ValueError, match="such as|lower number first"):
        parse_quantity(text, units, "'45 min'")


def number(text):
    return parse_quantity(text, NUMBER_UNITS, "x")


@pytest.mark.parametrize(
    ("claimed", "low", "high", "expected"),
    [
        ("4", 3, 6, "agree"),
        ("2-3", 2.3, 2.7, "agree"),
        ("2-3", 2.9, 4, "partly"),
        ("2-3", 4, 5, "apart"),
        ("1.03", 1.0355, None, "agree"),
        ("0.1", 0.051, None, "agree"),
        ("0.10", 0.051, None, "apart"),
        ("100", 104, None, "apart"),
        ("~100", 104, None, "agree"),
        ("< 100", 40, None, "agree"),
        ("< 100", 140, None, "apart"),
    ],
)
def test_agreement(claimed, low, high, expected):
    assert compare_quantities(number(claimed), low, high) == expected


def test_gigabytes_may_be_binary():
    claimed = parse_quantity("40 GB", SIZE_UNITS, "x")
    assert compare_sizes(claimed, 40 * GIB) == compare_sizes(claimed, 40 * GIGA) == "agree"
    assert compare_sizes(claimed, 46 * GIGA) == "apart"


def test_shown():
    assert show_bytes(5.23e9) == "5.23 GB (4.87 GiB)"
    assert show_number(2375) == "2,375"
    assert show_number(2.2857, 2.8571) == "2.286 to 2.857"
