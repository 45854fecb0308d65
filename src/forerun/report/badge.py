"""A badge as an SVG file: whether a run fits a card, and how much of it it takes; for a README or a pull request.

The number is the conservative one, which decides whether it fits. One file without fonts or scripts of others; its
title is read aloud by screen readers.
"""

from collections.abc import Sequence
from html import escape

from forerun.records import Forecast
from forerun.units import GIB, format_bytes

GOOD, BAD, LABEL = "#15803d", "#b91c1c", "#374151"
"""White on each of them has a contrast of at least 4.5 (WCAG 2.2, 1.4.3)."""
LETTER, PADDING, HEIGHT = 6.6, 7, 20
"""Pixels: a mean letter at 11 pixels, space at both sides of a part, height."""


def badge_of(forecasts: Sequence[Forecast]) -> str:
    """An SVG document with one part for each forecast."""
    parts = [("fits", LABEL), *((_text(each), GOOD if each.fits else BAD) for each in forecasts)]
    widths = [round(len(text) * LETTER + 2 * PADDING) for text, _ in parts]
    lefts = [sum(widths[:n]) for n in range(len(parts))]
    boxes = "".join(
        f'<rect x="{left}" width="{width}" height="{HEIGHT}" fill="{colour}"/>'
        f'<text x="{left + width / 2:g}" y="14" text-anchor="middle">{escape(text)}</text>'
        for (text, colour), left, width in zip(parts, lefts, widths, strict=True)
    )
    title = escape("; ".join(_sentence(each) for each in forecasts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{sum(widths)}" height="{HEIGHT}" role="img" '
        f'aria-labelledby="title"><title id="title">{title}</title>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{boxes}</g></svg>\n'
    )


def _text(forecast: Forecast) -> str:
    needs, has = forecast.memory.device_bytes.conservative / GIB, forecast.memory.capacity_bytes / GIB
    return f"{_card(forecast)} {'✓' if forecast.fits else '✗'} {needs:.1f} of {has:.1f} GiB"


def _sentence(forecast: Forecast) -> str:
    memory, verb = forecast.memory, "fits" if forecast.fits else "does not fit"
    return (
        f"Forecast: {verb} {_card(forecast)}; {format_bytes(memory.device_bytes.expected)} expected, at most "
        f"{format_bytes(memory.device_bytes.conservative)}, of {format_bytes(memory.capacity_bytes)}"
    )


def _card(forecast: Forecast) -> str:
    return forecast.gpu if forecast.world_size == 1 else f"{forecast.world_size} × {forecast.gpu}"
