"""The only place that knows 1024 and powers of ten: bytes, seconds and FLOP inside, GiB, ms and TFLOP/s outside."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3
KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
NANO = 1e-9
MICRO = 1e-6
MILLI = 1e-3
MINUTE = 60.0
HOUR = 3600.0
KILOWATT_HOUR = KILO * HOUR  # joules


def format_bytes(count: float) -> str:
    """Bytes as GiB, MiB or KiB with three significant digits."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds as µs, ms, s, min or h, whichever reads best."""
    size = abs(seconds)
    if size >= HOUR:
        return f"{_three_digits(seconds / HOUR)} h"
    if size >= 2 * MINUTE:
        return f"{_three_digits(seconds / MINUTE)} min"
    if size >= 1:
        return f"{_three_digits(seconds)} s"
    if size >= MILLI:
        return f"{_three_digits(seconds / MILLI)} ms"
    if size == 0:
        return "0 s"
    return f"{_three_digits(seconds / MICRO)} µs"


def format_flops_per_second(rate: float) -> str:
    """FLOP/s as TFLOP/s or GFLOP/s."""
    return f"{_three_digits(rate / TERA)} TFLOP/s" if rate >= TERA else f"{_three_digits(rate / GIGA)} GFLOP/s"


def format_bytes_per_second(rate: float) -> str:
    """Bytes per second as decimal GB/s, the unit of datasheets."""
    return f"{_three_digits(rate / GIGA)} GB/s"


def format_percent(fraction: float, signed: bool = False) -> str:
    """A fraction as percent with one decimal."""
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def format_count(count: int, noun: str) -> str:
    """Number and noun, `1 row` and `1,200 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
