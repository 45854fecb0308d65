"""Curves of results as SVG files of their own, for documents: style sheet, names of axes and legend in the drawing."""

from collections.abc import Sequence
from html import escape

from forerun.report.charts import HEIGHT, LEFT, WIDTH, Line, LineView, draw_lines, line_view
from forerun.report.tables import ResultCurve

STYLES = 5
"""Colours of further lines in the style sheets."""
ABOVE, BELOW = 24, 44
"""Pixels above the plot, for the name of its upward axis, and below it, for the other name and the legend."""
LETTER = 6.2
"""Pixels of a mean letter at 11 pixels."""
STYLE = (
    "svg{background:#fff;font-family:system-ui,sans-serif}text{font-size:11px;fill:#57606a}.grid{stroke:#d8dee4}"
    ".line{fill:none;stroke-width:1.5}.dot{fill:#0b5394}polygon.interval{stroke:none;fill-opacity:.12}"
    ".one{stroke:#0b5394}.part0{stroke:#d98032}.part1{stroke:#6a51a3}.part2{stroke:#4d9a4a}.part3{stroke:#74a9cf}"
    ".part4{stroke:#9aa0a6}.interval.one{fill:#0b5394}.interval.part0{fill:#d98032}.interval.part1{fill:#6a51a3}"
    ".interval.part2{fill:#4d9a4a}.interval.part3{fill:#74a9cf}.interval.part4{fill:#9aa0a6}"
)


def curve_lines(curve: ResultCurve) -> list[Line]:
    """The series as lines with their styles."""
    lines = []
    for number, series in enumerate(curve.series):
        both = series.low is not None and series.high is not None
        lines.append(
            Line(
                name=series.name.replace("_", " "),
                style="dot" if series.is_scattered else line_style(number),
                dots=series.is_scattered,
                points=list(zip(series.x, series.y, strict=True)),
                intervals=list(zip(series.low or [], series.high or [], strict=True)) if both else [],
            )
        )
    return lines


def line_style(number: int) -> str:
    """CSS class of the line of that number."""
    return "line one" if number == 0 else f"line part{(number - 1) % STYLES}"


def curve_view(curve: ResultCurve, lines: Sequence[Line]) -> LineView:
    """The lines over common axes; there is at least one point."""
    description = f"{curve.up} over {curve.across}: {', '.join(line.name for line in lines)}."
    return line_view(curve.title, description, lines)


def standalone(curve: ResultCurve) -> str | None:
    """An SVG document; None where the curve has no points."""
    lines = curve_lines(curve)
    if not any(line.points for line in lines):
        return None
    plot = draw_lines(curve_view(curve, lines), lambda value: f"{value:g}", lambda value: f"{value:g}")
    names = [f'<text x="{LEFT - 6}" y="14">{escape(curve.up)}</text>']
    names.append(f'<text x="{WIDTH - 12}" y="{HEIGHT + ABOVE + 12}" text-anchor="end">{escape(curve.across)}</text>')
    rows, legend = _legend(lines)
    height = HEIGHT + ABOVE + BELOW + 16 * (rows - 1)
    inner = plot.replace("<svg ", f'<svg y="{ABOVE}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<style>{STYLE}</style>{''.join(names)}{inner}{legend}</svg>\n"
    )


def _legend(lines: Sequence[Line]) -> tuple[int, str]:
    """Rows of the legend, and its drawing: names beside their colours."""
    parts, row, x = [], 0, float(LEFT)
    for line in lines:
        width = 26 + LETTER * len(line.name)
        if x + width > WIDTH and x > LEFT:
            row, x = row + 1, float(LEFT)
        y = HEIGHT + ABOVE + 30 + 16 * row
        parts.append(f'<line class="{line.style}" x1="{x:.0f}" x2="{x + 14:.0f}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text x="{x + 19:.0f}" y="{y}">{escape(line.name)}</text>')
        x += width + 8
    return row + 1, "".join(parts)
