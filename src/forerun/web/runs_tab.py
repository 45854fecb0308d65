"""The tab of runs: those of the ledger, one of them with its curve, forecast beside measured."""

# pyright: reportMissingImports=false
from nicegui import ui

from forerun.ledger.store import Ledger, open_ledger
from forerun.runs.watching import view_of
from forerun.units import format_bytes, format_seconds
from forerun.web import charts

LISTED = 50
SECONDS = 3.0
"""Between two looks at a run in progress."""


def runs_tab(ledger_url: str) -> None:
    """List the runs; who picks one sees it, for as long as it goes on."""
    with open_ledger(ledger_url) as ledger:
        rows = ledger.runs(LISTED)
    if not rows:
        ui.label("The ledger has no runs yet. Start one: forerun run code-detector")
        return
    names = {row.id: f"{row.id}  {row.name} on {row.gpu}: {row.state}" for row in rows}
    choice = ui.select(names, label="Run", value=rows[0].id).classes("w-full").props("outlined dense").mark("run")
    place = ui.column().classes("w-full")

    def show() -> None:
        with open_ledger(ledger_url) as ledger:
            is_over = _show(ledger, str(choice.value), place)
        timer.active = not is_over

    timer = ui.timer(SECONDS, show, immediate=False)
    choice.on_value_change(show)
    show()


def _show(ledger: Ledger, run_id: str, place: ui.column) -> bool:
    """Show one run; whether nothing more will come."""
    view = view_of(ledger, run_id)
    place.clear()
    with place:
        ui.label(f"{view.state}: step {view.step} of {view.total_steps or '?'}").classes("big")
        if view.losses:
            ui.echart(charts.loss_curve(view.losses)).classes("w-full h-64").props('role="img" aria-label="Loss"')
        lines = [("step time", view.forecast_step_seconds, view.step_seconds, format_seconds)]
        lines += [("memory", view.forecast_allocated_bytes, view.peak_allocated_bytes, format_bytes)]
        columns = [{"name": n, "label": n, "field": n, "align": "left"} for n in ("what", "forecast", "measured")]
        rows = [
            {"what": what, "forecast": "" if a is None else text(a), "measured": "" if b is None else text(b)}
            for what, a, b, text in lines
        ]
        rows += [{"what": name.replace("_", " "), "measured": f"{value:.4f}"} for name, value in view.metrics.items()]
        ui.table(columns=columns, rows=rows, row_key="what").classes("w-full").props("dense flat wrap-cells")
    return view.is_over
