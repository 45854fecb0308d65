"""Figures as people read them."""

import pytest

from forerun import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (2048, "2.00 KiB"), (5 * 1024**2, "5.00 MiB"), (42.5 * 1024**3, "42.5 GiB"), (-1536, "-1.50 KiB")],
)
def test_bytes(value, text):
    assert units.format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (5e-6, "5.00 µs"),
        (0.0123, "12.3 ms"),
        (1.5, "1.50 s"),
        (119, "119 s"),
        (600, "10.0 min"),
        (7200, "2.00 h"),
    ],
)
def test_seconds(value, text):
    assert units.format_seconds(value) == text


def test_rates_and_percent():
    assert units.format_flops_per_second(312e12) == "312 TFLOP/s"
    assert units.format_flops_per_second(80e9) == "80.0 GFLOP/s"
    assert units.format_bytes_per_second(1555e9) == "1,555 GB/s"
    assert units.format_percent(-0.1234, signed=True) == "-12.3 %"


def test_one_of_a_thing_is_no_plural():
    assert [units.format_count(count, "row") for count in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
