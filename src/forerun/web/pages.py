"""The pages of `forerun ui`: one page with four tabs, whose whole state is its address.

Every answer comes from a worker process (`asking.py`), so that the page never waits for one, and is the one that the
command line gives.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from nicegui import ui

from forerun.errors import ForerunError
from forerun.hardware.catalogue import devices
from forerun.models.catalogue import architectures
from forerun.records import Record
from forerun.report.terminal import cost_text
from forerun.units import format_bytes, format_seconds
from forerun.web import charts
from forerun.web.asking import Asker
from forerun.web.parts import Choice, draw_forecast, draw_remarks, draw_table
from forerun.web.pasted import keep_config
from forerun.web.question import CHOICES, PageQuestion, idle_fields, question_of
from forerun.web.runs_tab import RunsTab
from forerun.web.script_tab import ScriptTab
from forerun.web.shared_answers import SharedAnswers, require_public_model
from forerun.web.snippets import Snippet, snippets_of

TABS = {"fit": "Will it fit?", "gpus": "Which GPU?", "timeline": "Timeline", "runs": "Runs"}
SCRIPT_TAB = {"script": "Your script"}
WITHOUT_QUESTION = ("runs", "script")
"""Tabs that ask nothing by themselves."""


class PageOptions(Record):
    """What the pages of one server may show and do."""

    ledger_url: str
    studies_url: str
    allows_scripts: bool = False
    is_public: bool = False
    """For anybody: no runs of this machine, no folders, nothing pasted."""


NUMBERS = {
    "batch": "Micro-batch", "accumulation": "Accumulation", "length": "Tokens per sample",
    "image_size": "Image side in pixels", "audio_seconds": "Seconds of sound",
    "prompt_length": "Embeddings of a prompt", "rank": "LoRA rank",
    "devices": "GPUs", "examples": "Examples", "epochs": "Epochs",
}  # fmt: skip
OPTIONAL = ("image_size", "audio_seconds", "prompt_length")
"""Numbers that may be empty."""
STYLE = """
.nicegui-content {max-width: 1080px; margin: 0 auto; padding: 12px}
.q-field {min-width: 0} .q-tab {padding: 0 9px} td {overflow-wrap: break-word}
.yes {color: #15803d} .no {color: #b91c1c} .body--dark .yes {color: #4ade80} .body--dark .no {color: #f87171}
 .big {font-size: 1.5rem; line-height: 1.3; font-weight: 600}
pre {white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem}
pre .c1 {color: inherit !important}
"""


BACK = """<script>
window.addEventListener("popstate", () => emitEvent("history-moved", location.search));
</script>"""
"""Who goes back or forward in the browser's history gets the state of that address, without a new page."""

NAMES = """<script>
const name_parts = () => {
  document.querySelectorAll(".q-table__middle.scroll:not([tabindex])").forEach(part => {
    part.tabIndex = 0; part.setAttribute("role", "group"); part.setAttribute("aria-label", "Table");
  });
  document.querySelectorAll(".q-loading-bar:not([aria-label])").forEach(part => {
    part.setAttribute("aria-label", "Loading");
  });
};
new MutationObserver(name_parts).observe(document.body, {childList: true, subtree: true});
</script>"""
"""Parts of Quasar (2.18) that a keyboard cannot scroll, or that a screen reader has no name for, get what they lack."""


class Pages:
    """One visitor's page."""

    def __init__(self, query: Mapping[str, str], options: PageOptions, answers: SharedAnswers | None = None) -> None:
        self.asker, self.options = Asker(None if answers is None else answers.ask), options
        self.titles = TABS | (SCRIPT_TAB if options.allows_scripts else {})
        if options.is_public:
            self.titles = {name: title for name, title in self.titles.items() if name not in WITHOUT_QUESTION}
        self.controls: dict[str, Any] = {}
        self._read(query)
        self.address = self._address()

    def _read(self, query: Mapping[str, str]) -> None:
        """Take the state of an address."""
        self.problem = ""
        try:
            self.question = self._question_of(query)
        except ForerunError as error:
            self.question, self.problem = PageQuestion(), str(error)
        self.tab = query.get("tab", "fit") if query.get("tab") in self.titles else "fit"
        self.runs = [query.get("run", ""), query.get("beside", "")]

    def _question_of(self, query: Mapping[str, str]) -> PageQuestion:
        question = question_of(query)
        if self.options.is_public:
            require_public_model(question.model)
        return question

    def _address(self) -> str:
        """The address of the state."""
        tab = {"tab": self.tab} if self.tab != "fit" else {}
        runs = dict(zip(("run", "beside"), self.runs, strict=True)) if self.tab == "runs" else {}
        parts = [urlencode({name: value for name, value in {**tab, **runs}.items() if value}), self.question.query()]
        return f"/?{'&'.join(filter(None, parts))}".removesuffix("?")

    def build(self) -> None:
        """Put everything on the page, and ask the first question."""
        ui.dark_mode(None)
        ui.context.client.on_delete(self.asker.cancel)
        ui.add_css(STYLE)
        ui.add_body_html(BACK)
        ui.add_body_html(NAMES)
        ui.on("history-moved", self._moved)
        ui.label("Forerun: what a training run will cost").props('role="heading" aria-level="1"').classes("text-xl")
        with (
            ui.tabs(value=self.tab, on_change=self._turn)
            .props("dense no-caps align=left outside-arrows mobile-arrows")
            .classes("max-w-full") as self.tabs
        ):
            for name, title in self.titles.items():
                ui.tab(name, title)
        self.form = ui.grid().classes("w-full grid-cols-2 sm:grid-cols-3 md:grid-cols-5 gap-2")
        with self.form:
            self._fields()
        if not self.options.is_public:
            self._paste_place()
        with ui.row().classes("items-center") as self.waiting:
            ui.spinner(size="sm")
            self.progress = ui.label("").props('role="status" aria-live="polite"')
            ui.button("Cancel", on_click=self._cancel, color=None).props("flat dense no-caps")
        self.out = ui.column().classes("w-full").props('aria-live="polite"')
        ui.timer(0.05, self._answer, once=True)

    def _fields(self) -> None:
        models = sorted({row.name for row in architectures()} | {self.question.model})
        gpus = [*(device.name for device in devices())]
        search = {"model": ("Model", models), "gpu": ("GPU", gpus)}
        for name, (label, options) in search.items():
            hint = ("or a hub id" + ", or a folder" * (not self.options.is_public)) if name == "model" else ""
            self.controls[name] = Choice(
                options, label=label, value=getattr(self.question, name), with_input=True,
                new_value_mode="add-unique" if name == "model" else None, on_change=partial(self._change, name),
            ).props(f'dense outlined hint="{hint}"').mark(name)  # fmt: skip
        for name, options in CHOICES.items():
            label = name.capitalize()
            self.controls[name] = (
                Choice(
                    list(options),
                    label=label,
                    value=getattr(self.question, name),
                    on_change=partial(self._change, name),
                )
                .props("dense outlined")
                .mark(name)
            )
        for name, label in NUMBERS.items():
            self.controls[name] = ui.number(
                label, value=getattr(self.question, name), min=1 if name != "epochs" else 0.01,
                placeholder="as the model says" if name in OPTIONAL else None,
                on_change=partial(self._change, name),
            ).props("dense outlined debounce=400").mark(name)  # fmt: skip

    def _paste_place(self) -> None:
        with ui.expansion("Paste a config.json").classes("w-full") as self.paste:
            text = ui.textarea("config.json of the model").classes("w-full").props("outlined input-style=height:8rem")

            async def use() -> None:
                try:
                    folder = keep_config(str(text.value or ""))
                except ForerunError as error:
                    self.problem = str(error)
                    await self._answer()
                else:
                    self.problem = ""
                    _set(self.controls["model"], folder)

            ui.button("Use it", on_click=use, color=None).props("no-caps outline")

    async def _change(self, name: str, event: Any) -> None:
        value = event.value
        if value == getattr(self.question, name) or (value is None and name not in OPTIONAL):
            return
        try:
            state = {field: _text(each) for field, each in self.question.model_dump().items()}
            self.question = self._question_of({**state, name: _text(value)})
            self.problem = ""
        except ForerunError as error:
            self.problem = str(error)
        await self._answer()

    async def _turn(self, event: Any) -> None:
        if event.value != self.tab:
            self.tab = event.value
            await self._answer()

    async def _moved(self, event: Any) -> None:
        """Show the state of the address that the browser went back or forward to."""
        self._read(dict(parse_qsl(str(event.args).removeprefix("?"))))
        self.address = self._address()
        self.tabs.value = self.tab
        for name, control in self.controls.items():
            _set(control, getattr(self.question, name))
        await self._answer()

    def _cancel(self) -> None:
        self.asker.cancel()
        self.waiting.set_visibility(False)

    def _remember(self) -> None:
        """The state is an entry of the browser's history, and its address can be sent on."""
        if not self.problem and self._address() != self.address:
            self.address = self._address()
            ui.navigate.history.push(self.address)

    def _choose_runs(self, first: str, second: str) -> None:
        self.runs = [first, second]
        self._remember()

    async def _answer(self) -> None:
        """Ask what the tab shows and show it."""
        self._remember()
        idle = idle_fields(self.question)
        for name, control in self.controls.items():
            control.set_visibility(name not in idle and (self.tab != "script" or name == "gpu"))
        self.form.set_visibility(self.tab != "runs")
        if not self.options.is_public:
            self.paste.set_visibility(self.tab not in WITHOUT_QUESTION)
        if self.problem or self.tab in WITHOUT_QUESTION:
            self._cancel()
            await self._show({"error": self.problem} if self.problem else {})
            return
        kind = "comparison" if self.tab == "gpus" else "forecast"
        document = await self._ask(kind)
        if document is not None:
            await self._show(document)

    async def _ask_script(self, script: str) -> Mapping[str, Any] | None:
        return await self._ask("script", script=script)

    async def _ask(self, kind: str, **more: str) -> Mapping[str, Any] | None:
        self.waiting.set_visibility(True)
        self.progress.text = "asking"
        question = {"kind": kind, "settings": self.question.content(), "gpu": self.question.gpu, **more}
        if not self.options.is_public:
            question["storage"] = self.options.studies_url
        document = await self.asker.ask(question, self._say)
        if document is not None:
            self.waiting.set_visibility(False)
        return document

    def _say(self, line: str) -> None:
        self.progress.text = line

    async def _show(self, document: Mapping[str, Any]) -> None:
        self.out.clear()
        with self.out:
            if "error" in document:
                ui.label(document["error"]).classes("no").props('role="alert"').mark("error")
            elif self.tab == "runs":
                tab = RunsTab(self.options.ledger_url, self.runs, self._choose_runs, partial(self._ask, "studies"))
                await tab.build()
            elif self.tab == "script":
                ScriptTab(self._ask_script).build()
            elif self.tab == "gpus":
                _comparison(document)
            elif self.tab == "timeline":
                capacity = document["forecast"]["memory"]["capacity_bytes"]
                options = charts.memory_over_step(document["timeline"], capacity)
                ui.echart(options).classes("w-full h-96").props('role="img" aria-label="Memory over one step"')
                draw_table(["operator", "phase", "calls", "ms"], [
                    [row["name"].replace(".default", ""), row["phase"], row["calls"], round(1e3 * row["seconds"], 3)]
                    for row in document["operators"]
                ])  # fmt: skip
            else:
                self._fit(document["forecast"])

    def _fit(self, forecast: Mapping[str, Any]) -> None:
        draw_forecast(forecast)
        changes = ui.column().classes("w-full")
        ui.button(
            "What would change it?" if forecast["fits"] else "What would make it fit?",
            on_click=partial(self._changes, changes),
            color=None,
        ).props("no-caps outline")
        own = [
            Snippet(title="run.yaml", language="yaml", text=self.question.yaml_text()),
            Snippet(title="command", language="bash", text=self.question.command_line()),
        ]
        with ui.expansion("Take it along", value=True).classes("w-full"):
            for snippet in [*own, *snippets_of(self.question.settings())]:
                ui.label(snippet.title).classes("text-sm")
                code = ui.code(snippet.text, language=snippet.language).classes("w-full")
                code.copy_button.props(f'aria-label="Copy {snippet.title}"')
        draw_remarks(forecast)

    async def _changes(self, place: Any) -> None:
        document = await self._ask("changes")
        if document is None:
            return
        place.clear()
        with place:
            if "error" in document:
                ui.label(document["error"]).classes("no").props('role="alert"')
                return
            draw_table(["change", "fits", "memory", "time"], [
                [row["change"], "yes" if row["fits"] else "no", format_bytes(row["device_bytes"]),
                 f"{row['time_ratio']:.2f}×"]
                for row in document["changes"]
            ])  # fmt: skip


def _comparison(document: Mapping[str, Any]) -> None:
    rows = document["rows"]
    choice = document["chosen"]
    ui.label(
        f"Fastest: {document['fastest']}. Cheapest: {document['cheapest']}." if choice else "It fits none of them."
    ).classes("big").mark("verdict")
    ui.echart(charts.time_and_cost(rows)).classes("w-full h-96").props('role="img" aria-label="Time and cost by GPU"')
    ordered = sorted(rows, key=lambda row: (not row["fits"], row["run_seconds"] or 0.0))
    draw_table(["GPU", "micro-batch", "run", "cost", "changes"], [_card(row) for row in ordered])


def _card(row: Mapping[str, Any]) -> list[Any]:
    if not row["fits"]:
        return [row["gpu"], "", row["why_not"], "", ""]
    changes = ", ".join(f"{change['path']}={change['new']}" for change in row["changes"])
    return [row["gpu"], row["micro_batch_size"], format_seconds(row["run_seconds"]), cost_text(row["cost"]), changes]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _set(control: Any, value: Any) -> None:
    """Give a control a value; a list that has no such option gets it."""
    options = getattr(control, "options", None)
    if isinstance(options, list) and value not in options:
        control.set_options([*options, value])
    control.value = value
