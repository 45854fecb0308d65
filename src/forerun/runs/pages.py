"""What is on the page of a run or a sweep? Everything that the ledger has of it, in one HTML file without scripts."""

from collections.abc import Sequence
from pathlib import Path

from forerun.errors import InvalidSettings
from forerun.ledger.store import Ledger, RunRow
from forerun.report.figure import standalone
from forerun.report.html import PageContent, render_page, render_results
from forerun.report.tables import ResultCurve, ResultTable
from forerun.runs.registry import load_recipe, recipe_names
from forerun.runs.run import RESULT_TABLES, RUNS_FOLDER, run_folder
from forerun.runs.sweep import Sweep


def write_page(ledger: Ledger, run_id: str, to: Path | None = None) -> Path:
    """Write the page of a run, beside its checkpoints unless `to` says otherwise; returns the file.

    Raises:
        InvalidSettings: the run has no forecast.
    """
    content = page_content(ledger, run_id)
    path = to or run_folder(ledger.run(run_id)) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(content), encoding="utf-8")
    return path


def page_content(ledger: Ledger, run_id: str) -> PageContent:
    """What the ledger has of a run, for its page.

    Raises:
        InvalidSettings: the run has no forecast.
    """
    row, forecast = ledger.run(run_id), ledger.forecast(run_id)
    if forecast is None:
        raise InvalidSettings(f"Run {run_id} has no forecast, so there is no page. Start it with forerun run.")
    results = ledger.results(run_id).get(RESULT_TABLES, {})
    return PageContent(
        title=f"{row.name} on {row.gpu}",
        run={key: str(value) for key, value in row.model_dump(exclude={"settings", "versions"}).items()},
        settings=row.settings,
        forecast=forecast,
        measurement=ledger.measurement(run_id),
        verdict=ledger.verdict(run_id),
        steps=ledger.steps(run_id),
        tables=[ResultTable.model_validate(table) for table in results.get("tables", ())] + related_tables(ledger, row),
        curves=[ResultCurve.model_validate(curve) for curve in results.get("curves", ())],
    )


def related_tables(ledger: Ledger, row: RunRow) -> list[ResultTable]:
    """Tables that a run's recipe makes from the ledger's other runs; most recipes make none."""
    tables_of = getattr(load_recipe(row.workload), "related_tables", None) if row.workload in recipe_names() else None
    return [] if tables_of is None else tables_of(ledger, row.id)


def write_sweep_page(sweep: Sweep, tables: Sequence[ResultTable], curves: Sequence[ResultCurve]) -> Path:
    """Write the page of a sweep under `runs/`, and each curve as a drawing of its own beside it; returns the page."""
    runs = [planned.run_id for planned in sweep.planned if planned.run_id is not None]
    path = RUNS_FOLDER / f"sweep-{runs[0]}" / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    workload = sweep.planned[0].variant.settings.workload
    note = f"{len(runs)} of {len(sweep.planned)} variants were run: {', '.join(runs)}"
    path.write_text(render_results(f"Sweep of {workload}", note, tables, curves), encoding="utf-8")
    for curve in curves:
        drawing = standalone(curve)
        if drawing is not None:
            path.with_name(f"{curve.title.lower().replace(' ', '-')}.svg").write_text(drawing, encoding="utf-8")
    return path
