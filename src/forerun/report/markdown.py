"""The page of a run as Markdown, for a pull request: what the HTML page says, without its drawings."""

from collections.abc import Iterable, Iterator, Sequence

from forerun.records import Verdict
from forerun.report.html import PageContent, criterion_word, facts, headline, phase_bars, run_bars, verdict_rows
from forerun.report.plain_tables import PlainTable, as_markdown
from forerun.report.tables import ResultTable, cell_text
from forerun.units import format_bytes


def markdown_page(content: PageContent) -> str:
    """Headline, criteria, forecast beside measured; memory, time, results and warnings folded away."""
    forecast, verdict = content.forecast, content.verdict
    fits = "It fits" if forecast.fits else "It does not fit"
    at_most = format_bytes(forecast.memory.device_bytes.conservative)
    memory = f"{fits}: at most {at_most} of {format_bytes(forecast.memory.capacity_bytes)} on {forecast.gpu}."
    first = [_table("", ["quantity", "value", ""], facts(content))]
    if verdict is not None:
        columns = ["quantity", "forecast", "measured", "error", "range"]
        first = [_criteria(verdict), _table("Forecast beside measured", columns, verdict_rows(verdict))]
    more = [*_details(content), *(_result(table) for table in content.tables), *forecast.warnings]
    return "\n".join([
        f"### {as_markdown([content.title])}", as_markdown([headline(content), memory, *first]),
        "<details><summary>More</summary>\n", as_markdown(more), "</details>",
    ])  # fmt: skip


def _details(content: PageContent) -> Iterator[PlainTable]:
    forecast, measured = content.forecast, content.measurement
    sizes = forecast.memory.breakdown.model_dump().items()
    rows = [(name.removesuffix("_bytes").replace("_", " "), format_bytes(size)) for name, size in sizes]
    yield _table("Memory at the peak (forecast)", ["part", "size"], rows)
    for title, bars in (
        ("One step", phase_bars(forecast.step.phases, measured and measured.step.phases)),
        ("The whole run", run_bars(forecast, measured)),
    ):
        yield _table(title, ["phase", "forecast", "measured"], [(b.name, b.forecast, b.measured) for b in bars])


def _criteria(verdict: Verdict) -> PlainTable:
    rows = [(each.name, f"{each.value:.3f}", each.rule, criterion_word(each)) for each in verdict.criteria]
    return _table("Criteria", ["criterion", "value", "rule", ""], rows)


def _result(table: ResultTable) -> PlainTable:
    return _table(table.title, table.columns, [[cell_text(cell) for cell in row] for row in table.rows])


def _table(title: str, columns: list[str], rows: Iterable[Sequence[str]]) -> PlainTable:
    return PlainTable(title=title, columns=columns, rows=[list(row) for row in rows])
