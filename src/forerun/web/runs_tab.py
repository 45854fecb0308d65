"""The tab of runs: those of the ledger, one or two of them live, forecast beside measured; sweeps and tunings."""

# pyright: reportMissingImports=false, reportArgumentType=false
import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from nicegui import ui

from forerun.errors import ForerunError
from forerun.ledger.store import RunRow, open_ledger
from forerun.runs.watching import RunView, view_of
from forerun.web import charts
from forerun.web.runs_view import SeveralRuns, beside, list_rows, scores, several_runs

LISTED = 50
SECONDS = 3.0
"""Between two looks at a run in progress."""
SETTINGS_SHOWN = 6
"""Axes of a tuning, those first that mattered most."""
COLUMNS = ("run", "name", "gpu", "state", "forecast", "measured", "off")


class RunsTab:
    """The runs of one ledger; `run_ids` are up to two ids, and `on_choice` hears of others."""

    def __init__(
        self, ledger_url: str, run_ids: Sequence[str], on_choice: Callable[[str, str], None],
        ask_studies: Callable[[], Awaitable[Mapping[str, Any] | None]],
    ) -> None:  # fmt: skip
        self.url, self.first, self.second = ledger_url, *[*run_ids, "", ""][:2]
        self.on_choice, self.ask_studies = on_choice, ask_studies

    async def build(self) -> None:
        """List the runs, show those that are chosen, follow them for as long as they go on."""
        runs, rows, groups = await asyncio.to_thread(self._listed)
        if not runs:
            ui.label("The ledger has no runs yet. Start one: forerun run code-detector")
        else:
            self._choices(runs)
            self.headline = ui.label("").classes("big").props('role="status"')
            self.chart = ui.echart(charts.loss_curves({})).classes("w-full h-64").props('role="img" aria-label="Loss"')
            self.table = ui.table(columns=[], rows=[], row_key="what").classes("w-full").props("dense flat wrap-cells")
            with ui.expansion("Scores").classes("w-full") as self.more:
                self.scores = ui.table(columns=[], rows=[], row_key="what").classes("w-full").props("dense flat")
            self.timer = ui.timer(SECONDS, self._show)
            for group in groups:
                _draw_several(group)
            with ui.expansion(f"All {len(rows)} runs", value=len(rows) <= 10).classes("w-full"):
                columns = [{"name": n, "label": n, "field": n, "align": "left", "sortable": True} for n in COLUMNS]
                ui.table(columns=columns, rows=rows, row_key="run").classes("w-full").props("dense flat wrap-cells")
        await self._studies()

    def _listed(self) -> tuple[list[RunRow], list[dict[str, str]], list[SeveralRuns]]:
        with open_ledger(self.url) as ledger:
            runs = ledger.runs(LISTED)
            return runs, list_rows(ledger, runs), several_runs(ledger, runs)

    def _choices(self, runs: Sequence[RunRow]) -> None:
        names = {row.id: f"{row.id}  {row.name} on {row.gpu}: {row.state}" for row in runs}
        self.first = self.first or runs[0].id
        for each in (self.first, self.second):
            names.setdefault(each, each) if each else None
        with ui.grid().classes("w-full grid-cols-1 sm:grid-cols-2 gap-2"):
            one = ui.select(names, label="Run", value=self.first)
            two = ui.select({"": "nothing", **names}, label="Beside", value=self.second)
        for choice in (one, two):
            choice.props("outlined dense options-dense").classes("w-full")

        async def choose() -> None:
            self.first, self.second = str(one.value), str(two.value)
            self.on_choice(self.first, self.second)
            self.timer.activate()
            await self._show()

        one.on_value_change(choose)
        two.on_value_change(choose)

    def _views(self) -> list[RunView]:
        with open_ledger(self.url) as ledger:
            return [view_of(ledger, each) for each in dict.fromkeys((self.first, self.second)) if each]

    async def _show(self) -> None:
        """Show the chosen runs as they are now; stop looking once nothing more will come."""
        try:
            views = await asyncio.to_thread(self._views)
        except ForerunError as error:
            self.timer.deactivate()
            self.headline.text = str(error)
            return
        if all(view.is_over for view in views):
            self.timer.deactivate()
        self.headline.text = ". ".join(f"{v.name} {v.state}: step {v.step} of {v.total_steps or '?'}" for v in views)
        self.chart.options.update(charts.loss_curves({view.run_id: view.losses for view in views if view.losses}))
        self.chart.update()
        columns, of_scores = [("what", "what")], [("what", "score")]
        for number, view in enumerate(views):
            suffix = "" if len(views) == 1 else f" {view.run_id[-4:]}"
            columns += [(f"forecast{number}", f"forecast{suffix}"), (f"measured{number}", f"measured{suffix}")]
            of_scores.append((f"run{number}", view.run_id))
        for table, names, rows in ((self.table, columns, beside(views)), (self.scores, of_scores, scores(views))):
            table.columns = [{"name": n, "label": label, "field": n, "align": "left"} for n, label in names]
            table.rows = rows
        self.more.set_visibility(any(view.metrics for view in views))

    async def _studies(self) -> None:
        place = ui.column().classes("w-full")
        document = await self.ask_studies()
        if document is None:
            return
        with place:
            if "error" in document:
                ui.label(document["error"]).classes("no").props('role="alert"')
                return
            for study in document["studies"]:
                _draw_study(study)


def _heading(text: str) -> None:
    ui.label(text).classes("text-lg").props('role="heading" aria-level="2"')


def _draw_wide(options: Mapping[str, Any], name: str) -> None:
    """A chart that a phone scrolls sideways, by keyboard too."""
    with ui.element("div").classes("w-full overflow-x-auto").props(f'tabindex=0 role="group" aria-label="{name}"'):
        ui.echart(dict(options)).classes("w-full min-w-[36rem] h-80").props(f'role="img" aria-label="{name}"')


def _draw_several(group: SeveralRuns) -> None:
    _heading(f"{group.name}: {len(group.lines)} runs, what differs and what came of it")
    options = charts.parallel_lines(group.axes, group.lines, group.labels)
    _draw_wide(options, "Runs as parallel coordinates")


def _draw_study(study: Mapping[str, Any]) -> None:
    trials = [trial for trial in study["trials"] if trial["score"] is not None]
    _heading(f"Tuning {study['name']}: {len(trials)} of {len(study['trials'])} trials have a score")
    if not trials:
        return
    weight = {row["name"]: row["value"] for row in study["importances"]}
    settings = sorted(study["settings"], key=lambda name: -weight.get(name, 0.0))[:SETTINGS_SHOWN]
    lines = [[*(trial["params"].get(name, "") for name in settings), trial["score"]] for trial in trials]
    labels = [f"trial {trial['number']}" for trial in trials]
    options = charts.parallel_lines([*settings, "score"], lines, labels)
    _draw_wide(options, "Trials as parallel coordinates")
    if study["importances"]:
        _heading("Which settings mattered")
        bars = charts.importance_bars(study["importances"])
        ui.echart(bars).classes("w-full h-64").props('role="img" aria-label="Which settings mattered"')
