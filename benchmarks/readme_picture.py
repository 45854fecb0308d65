"""The README's picture: the forecast of its own settings file, as the terminal shows it.

    python -m benchmarks.readme_picture       writes docs/forecast.svg, and its figures into README.md and the docs

A test compares the README's figures with a new forecast, so that the picture cannot go stale.
"""

import datetime
import re
from io import StringIO
from pathlib import Path

import yaml
from rich.console import Console

import forerun
from forerun.records import Forecast
from forerun.report.terminal import forecast_table
from forerun.units import format_bytes, format_seconds

ROOT = Path(__file__).parents[1]
GPU, WIDTH = "a100-40gb", 84


def readme_forecast() -> Forecast:
    """The forecast of the README's first settings file."""
    block = (ROOT / "README.md").read_text().split("```yaml")[1].split("```")[0]
    return forerun.forecast(yaml.safe_load(block), gpu=GPU)


def figures_of(forecast: Forecast) -> str:
    """The figures that the README states in words."""
    step, run = forecast.step.seconds.expected, forecast.run
    return (
        f"{format_bytes(forecast.memory.peak_allocated_bytes)} peak allocated, {format_seconds(step)} a step, "
        f"{format_seconds(run.seconds.expected)}, ${run.cost:.2f}"
    )


def main() -> None:
    """Write the picture and the figures."""
    forecast = readme_forecast()
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(forecast_table(forecast, f"llama-lora on {GPU}"))
    picture = console.export_svg(title="forerun forecast run.yaml --gpu a100-40gb", unique_id="forecast")
    note = f"Output of forerun forecast for the YAML of README.md on {GPU}, {datetime.date.today()}, saved with rich"
    picture = re.sub(r"<!--.*?-->", f"<!-- {note} -->", picture, count=1, flags=re.DOTALL)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # nothing is fetched to look at it
    (ROOT / "docs" / "forecast.svg").write_text(picture)
    for name, pattern, text in (
        ("README.md", r"(fits, )[^\]]*(\]\(docs/forecast\.svg\))", figures_of(forecast)),
        ("docs/wrong-forecast.md", r"(## Walk 2: `Step  )[^`]*(`)", format_seconds(forecast.step.seconds.expected)),
    ):
        path = ROOT / name
        path.write_text(re.sub(pattern, rf"\g<1>{text}\g<2>", path.read_text()))
    print(figures_of(forecast))


if __name__ == "__main__":
    main()
