"""Small SVG charts for the report: first the view (numbers in drawing coordinates), then the drawing.

Views are plain records that tests can check; drawings use CSS classes of the page, so that colours follow its theme.
Every chart has a title and a description for readers who cannot see it.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from forerun.records import Record
from forerun.units import GIB, KIB, MIB

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 92, 12, 14, 28
TICKS = 4
NAME_HEIGHT = 15
"""Of the name of a mark, in pixels."""
MARKED = 12
"""Most points that a line marks with dots, so that a reader sees where nothing was measured."""
MOMENT_ROOM = 90
"""Least pixels between two moments that both have their names."""
NICE_STEPS = (1, 2, 2.5, 5, 10)


class Axis(Record):
    """A linear scale from values to pixels, with its ticks."""

    low: float
    high: float
    first_pixel: float
    last_pixel: float
    ticks: list[float]

    def pixel(self, value: float) -> float:
        """The pixel at which a value lies."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.first_pixel + share * (self.last_pixel - self.first_pixel), 1)


class Line(Record):
    """One series: a name, a CSS class, points in values, and the ends of an interval at each point, if it has one."""

    name: str
    style: str
    points: list[tuple[float, float]]
    dots: bool = False
    intervals: list[tuple[float, float]] = []


class Band(Record):
    """A horizontal band from `low` to `high`."""

    name: str
    low: float
    high: float


class LineView(Record):
    """A line or scatter chart."""

    title: str
    description: str
    across: Axis
    up: Axis
    lines: list[Line]
    bands: list[Band] = []


class Layer(Record):
    """One layer of a stack: lower and upper edge at each x."""

    name: str
    style: str
    lower: list[float]
    upper: list[float]


class StackView(Record):
    """Layers stacked over x, with marks at fixed heights."""

    title: str
    description: str
    across: Axis
    up: Axis
    x: list[float]
    layers: list[Layer]
    marks: list[tuple[str, float]] = []
    moments: list[tuple[str, float]] = []
    """Names of places on the horizontal axis, in their order."""


def nice_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """About `count` round numbers from `low` to at least `high`."""
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError(f"an axis needs finite ends; found {low} and {high}")
    span = max(high - low, 1e-12)
    magnitude = 10 ** math.floor(math.log10(span / count))
    step = next(s * magnitude for s in NICE_STEPS if s * magnitude * count >= span * (1 - 1e-9))
    first = math.floor(low / step + 1e-9) * step
    ticks = [first]
    while ticks[-1] < high - 1e-9 * span:
        ticks.append(round(first + len(ticks) * step, 12))
    return ticks


def across_axis(low: float, high: float) -> Axis:
    """A horizontal axis over exactly these values."""
    high = high if high > low else low + 1
    ticks = [t for t in nice_ticks(low, high) if low <= t <= high]
    return Axis(low=low, high=high, first_pixel=LEFT, last_pixel=WIDTH - RIGHT, ticks=ticks)


def up_axis(low: float, high: float, unit: float = 1) -> Axis:
    """A vertical axis rounded out to its ticks, which are round numbers of `unit`."""
    high = high if high > low else low + unit
    ticks = [tick * unit for tick in nice_ticks(low / unit, high / unit)]
    return Axis(low=ticks[0], high=ticks[-1], first_pixel=HEIGHT - BOTTOM, last_pixel=TOP, ticks=ticks)


def line_view(
    title: str, description: str, lines: Sequence[Line], *, from_zero: bool = True, bands: Sequence[Band] = ()
) -> LineView:
    """The view of lines over a common x."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [edge for band in bands for edge in (band.low, band.high)]
    ys += [edge for line in lines for interval in line.intervals for edge in interval]
    low = 0.0 if from_zero else min(ys)
    across, up = across_axis(min(xs), max(xs)), up_axis(low, max(ys))
    return LineView(title=title, description=description, across=across, up=up, lines=list(lines), bands=list(bands))


def stack_view(
    title: str,
    description: str,
    x: Sequence[float],
    series: Sequence[tuple[str, str, Sequence[float]]],
    marks: Sequence[tuple[str, float]] = (),
    moments: Sequence[tuple[str, float]] = (),
) -> StackView:
    """Series (name, style, heights in bytes) stacked in order; marks are left out unless they are near the top."""
    base = [0.0] * len(x)
    layers = []
    for name, style, heights in series:
        upper = [b + h for b, h in zip(base, heights, strict=True)]
        layers.append(Layer(name=name, style=style, lower=base, upper=upper))
        base = upper
    top = max(base)
    visible_marks = [(name, value) for name, value in marks if value <= 1.3 * top]
    highest = max([top, *(value for _, value in visible_marks)])
    up = up_axis(0.0, highest, next((unit for unit in (GIB, MIB, KIB) if highest >= unit), 1))
    return StackView(
        title=title, description=description, across=across_axis(min(x), max(x)), up=up, x=list(x), layers=layers,
        marks=visible_marks, moments=list(moments),
    )  # fmt: skip


def draw_lines(view: LineView, show_x: Callable[[float], str], show_y: Callable[[float], str]) -> str:
    """SVG of a line chart."""
    parts = [_frame(view.across, view.up, show_x, show_y)]
    for band in view.bands:
        top, bottom = view.up.pixel(band.high), view.up.pixel(band.low)
        width = view.across.last_pixel - view.across.first_pixel
        parts.append(f'<rect class="band" x="{LEFT}" y="{top}" width="{width}" height="{max(1.0, bottom - top):.1f}"/>')
    for line in view.lines:
        upper_edge = [(x, high) for (x, _), (_, high) in zip(line.points, line.intervals, strict=False)]
        lower_edge = [(x, low) for (x, _), (low, _) in zip(line.points, line.intervals, strict=False)]
        if upper_edge:
            edge = " ".join(
                f"{view.across.pixel(x)},{view.up.pixel(y)}" for x, y in [*upper_edge, *reversed(lower_edge)]
            )
            parts.append(f'<polygon class="interval {line.style}" points="{edge}"/>')
        points = [(view.across.pixel(x), view.up.pixel(y)) for x, y in line.points]
        if line.dots:
            parts += [f'<circle class="{line.style}" cx="{x}" cy="{y}" r="2"/>' for x, y in points]
        else:
            path = " ".join(f"{x},{y}" for x, y in points)
            parts.append(f'<polyline class="{line.style}" points="{path}"/>')
            if len(points) <= MARKED:
                parts += [f'<circle class="{line.style}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
    return _svg(view.title, view.description, parts)


def draw_stack(view: StackView, show_x: Callable[[float], str], show_y: Callable[[float], str]) -> str:
    """SVG of a stacked area chart."""
    parts = [_frame(view.across, view.up, show_x, show_y)]
    xs = [view.across.pixel(x) for x in view.x]
    for layer in view.layers:
        upper_edge = [f"{x},{view.up.pixel(y)}" for x, y in zip(xs, layer.upper, strict=True)]
        lower_edge = [f"{x},{view.up.pixel(y)}" for x, y in zip(reversed(xs), reversed(layer.lower), strict=True)]
        parts.append(f'<polygon class="{layer.style}" points="{" ".join([*upper_edge, *lower_edge])}"/>')
    parts += _moments(view)
    above = -math.inf
    for name, value in sorted(view.marks, key=lambda mark: -mark[1]):
        y = view.up.pixel(value)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        place = y - 4 if y - above > NAME_HEIGHT else y + NAME_HEIGHT  # else it would touch the one above
        parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{place}" text-anchor="end">{escape(name)}</text>')
        above = y
    return _svg(view.title, view.description, parts)


def _moments(view: StackView) -> list[str]:
    """Dashed lines with names behind them, the last ones before them; names that would touch are left out."""
    parts: list[str] = []
    last_x = -math.inf
    for name, value in view.moments:
        x = view.across.pixel(value)
        is_left = x > WIDTH - RIGHT - MOMENT_ROOM
        parts.append(f'<line class="moment" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        if x - last_x >= MOMENT_ROOM * (2 if is_left else 1):
            edge, anchor = (x - 4, "end") if is_left else (x + 4, "start")
            place = f'x="{edge:.1f}" y="{TOP - 4}" text-anchor="{anchor}"'
            parts.append(f'<text class="note" {place}>{escape(name)}</text>')
            last_x = x
    return parts


def _frame(across: Axis, up: Axis, show_x: Callable[[float], str], show_y: Callable[[float], str]) -> str:
    parts = []
    for tick in up.ticks:
        y = up.pixel(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(show_y(tick))}</text>')
    for tick in across.ticks:
        x = across.pixel(tick)
        parts.append(f'<text class="tick" x="{x}" y="{HEIGHT - 8}" text-anchor="middle">{escape(show_x(tick))}</text>')
    return "".join(parts)


def _svg(title: str, description: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
