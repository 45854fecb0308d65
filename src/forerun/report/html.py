"""The page of a run (being written)."""

from typing import Any

from forerun.records import Forecast, Measurement, Record, StepReport, Verdict
from forerun.report.tables import ResultTable


class PageContent(Record):
    """What a page shows."""

    title: str
    run: dict[str, str]
    settings: dict[str, Any]
    forecast: Forecast
    measurement: Measurement | None
    verdict: Verdict | None
    steps: list[StepReport]
    tables: list[ResultTable]


def render_page(content: PageContent) -> str:
    """One self-contained HTML document."""
    return content.title
