"""The tab of one's own script: paste or upload it, and see what `forerun exec` says; only where scripts are allowed."""

# pyright: reportMissingImports=false, reportArgumentType=false
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from nicegui import ui

from forerun.web.parts import draw_forecast, draw_remarks, draw_table
from forerun.web.script_job import LARGEST_SCRIPT


class ScriptTab:
    """A text of Python and what it needs; `ask` runs it on the card of the form."""

    def __init__(self, ask: Callable[[str], Awaitable[Mapping[str, Any] | None]]) -> None:
        self.ask = ask

    def build(self) -> None:
        """Put text, upload and button on the page."""
        ui.label(
            "The script runs on this machine on a virtual GPU, without a network and without your files. Datasets and "
            "weights that it would download are not there: make tensors of their shapes instead."
        )
        self.text = ui.textarea("Training script (Python)").classes("w-full font-mono")
        self.text.props("outlined input-style=height:14rem spellcheck=false")
        with ui.row().classes("items-center"):
            ui.button("Run it on a virtual GPU", on_click=self._run, color=None).props("no-caps outline")
            upload = ui.upload(on_upload=self._take, auto_upload=True, max_file_size=LARGEST_SCRIPT).props(
                'accept=".py"'
            )
            # Quasar's own box (2.18) has a button and an input without names, and white text on light blue; and what
            # NiceGUI hides itself takes no files (nicegui/elements/upload.py, 3.18).
            upload.style("display: none")
            ui.button("Take a file", on_click=partial(upload.run_method, "pickFiles"), color=None).props(
                "no-caps outline"
            )
        self.out = ui.column().classes("w-full").props('aria-live="polite"')

    async def _take(self, event: Any) -> None:
        self.text.value = (await event.file.read()).decode(errors="replace")

    async def _run(self) -> None:
        document = await self.ask(str(self.text.value or ""))
        if document is None:
            return
        self.out.clear()
        with self.out:
            if "error" in document:
                ui.label(document["error"]).classes("no").props('role="alert"')
                return
            _draw(document)


def _draw(document: Mapping[str, Any]) -> None:
    draw_forecast(document)
    script, full = document["script"], document["out_of_memory"]
    if full is not None:
        ui.label(f"Out of memory at {full['line']}").classes("no")
    ui.label(f"{script['steps_seen']} steps seen, exit code {script['exit_code']}")
    if document["findings"]:
        draw_table(["kind", "line", "what"], [[row["kind"], row["line"], row["text"]] for row in document["findings"]])
    if document["assumed"]:
        draw_table(["line", "not known", "answered with"], [
            [row["line"], row["what"], str(row["value"])] for row in document["assumed"]
        ])  # fmt: skip
    draw_remarks(document)
