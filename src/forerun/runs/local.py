"""Run an opened recipe on the device here: what `forerun run` and a copied recipe file both do."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from forerun.errors import FilesNotWritten, InvalidSettings
from forerun.hardware.detect import detect
from forerun.ledger.store import Ledger, RunRow, open_ledger
from forerun.report.figure import standalone
from forerun.report.html import PageContent, render_page, render_results
from forerun.report.tables import ResultCurve, ResultTable
from forerun.runs.progress import TerminalProgress
from forerun.runs.recipe import Experiment
from forerun.runs.registry import load_recipe, recipe_names
from forerun.runs.run import RESULT_TABLES, RunResult, follow, run_experiment, run_folder
from forerun.runs.sweep import Sweep
from forerun.train.interrupt import Interrupted
from forerun.train.launch import begun
from forerun.train.ranks import is_follower, join_group

RUNS_FOLDER = Path("runs")
"""Checkpoints and pages of runs, in the current folder."""


def run_locally(
    opened: Experiment, url: str, *, resume: str | None = None, quiet: bool = False, trackers: Sequence[str] = ()
) -> RunResult | None:
    """Run with the ledger at `url`, show it on the terminal, and write its page; None for all ranks but the first.

    Raises:
        Interrupted: stopped on request; how to go on has been said.
        FilesNotWritten: there is no place for checkpoints.
    """
    device = detect().device
    require_writable(RUNS_FOLDER)
    if is_follower():
        join_group(opened.settings, device.kind)
        follow(opened, device)
        return None
    screen, err = TerminalProgress(quiet=quiet), Console(stderr=True)
    with open_ledger(url) as ledger:
        try:
            outcome = run_experiment(
                opened, device, ledger, RUNS_FOLDER, resume=begun(resume), listener=screen, trackers=trackers
            )
        except Interrupted as stop:
            screen.close()
            err.print(f"{stop} Go on with: forerun run {opened.settings.workload} --resume {screen.run_id}")
            raise
        try:
            said = f"Page: {write_page(ledger, outcome.run_id)}"
        except OSError as error:
            said = f"The page could not be written: {error}. Free space; then: forerun report {outcome.run_id}"
    err.print(said, soft_wrap=True, highlight=False)
    return outcome


def require_writable(folder: Path) -> None:
    """Make sure that files can be written into `folder`, before anything is forecast or trained.

    Raises:
        FilesNotWritten: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"forerun")
            file.flush()
    except OSError as error:
        raise FilesNotWritten(
            f"Checkpoints and pages of runs go to {folder.resolve()}, which cannot be written: {error}. Free space or "
            f"change permissions there, or start from another folder."
        ) from error


def write_page(ledger: Ledger, run_id: str, to: Path | None = None) -> Path:
    """Write the page of a run, beside its checkpoints unless `to` says otherwise; returns the file.

    Raises:
        InvalidSettings: the run has no forecast.
    """
    row, forecast = ledger.run(run_id), ledger.forecast(run_id)
    if forecast is None:
        raise InvalidSettings(f"Run {run_id} has no forecast, so there is no page. Start it with forerun run.")
    results = ledger.results(run_id).get(RESULT_TABLES, {})
    content = PageContent(
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
    path = to or run_folder(row) / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(content), encoding="utf-8")
    return path


def related_tables(ledger: Ledger, row: RunRow) -> list[ResultTable]:
    """What a run's recipe has to say about it from the ledger's other runs; most say nothing."""
    chosen = getattr(load_recipe(row.workload), "related_tables", None) if row.workload in recipe_names() else None
    return [] if chosen is None else chosen(ledger, row.id)


def write_sweep_page(made: Sweep, tables: Sequence[ResultTable], curves: Sequence[ResultCurve]) -> Path:
    """Write the page of a sweep under `runs/`, and each curve as a drawing of its own beside it; returns the page."""
    runs = [planned.run_id for planned in made.planned if planned.run_id is not None]
    path = RUNS_FOLDER / f"sweep-{runs[0]}" / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    workload = made.planned[0].variant.settings.workload
    note = f"{len(runs)} of {len(made.planned)} variants were run: {', '.join(runs)}"
    path.write_text(render_results(f"Sweep of {workload}", note, tables, curves), encoding="utf-8")
    for curve in curves:
        drawing = standalone(curve)
        if drawing is not None:
            path.with_name(f"{curve.title.lower().replace(' ', '-')}.svg").write_text(drawing, encoding="utf-8")
    return path
