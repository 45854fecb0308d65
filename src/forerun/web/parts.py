"""What several pages are made of: tables, and the head of a forecast."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from forerun.report.terminal import cost_text
from forerun.units import format_bytes, format_seconds
from forerun.web import charts


class Choice(ui.select):
    """A list to choose from.

    NiceGUI (3.18) watches every option of a list for changes, and makes all of them anew at each property that is set:
    300 GPUs and models cost three quarters of a page. Rows in a tuple are taken as they are.
    """

    def _update_options(self) -> None:
        rows = tuple({"value": place, "label": label} for place, label in enumerate(self._labels))
        if self._props.get("options") != rows:
            self._props["options"] = rows
        value = self.value
        self._props[self.VALUE_PROP] = self._value_to_model_value(value)
        self.value = value if value in self._values else None


def draw_table(names: list[str], rows: list[list[Any]]) -> None:
    """A table whose columns bear `names`."""
    columns = [
        {"name": str(i), "label": name, "field": str(i), "align": "left"} for i, name in enumerate(names)
    ]  # fmt: skip
    content = [{str(i): value for i, value in enumerate(row)} for row in rows]
    ui.table(columns=columns, rows=content, row_key="0").classes("w-full").props("dense flat wrap-cells")


def draw_forecast(forecast: Mapping[str, Any]) -> None:
    """Whether it fits, the bar of memory, times and cost."""
    memory, step, run = forecast["memory"], forecast["step"], forecast["run"]
    needs, has = memory["device_bytes"], memory["capacity_bytes"]
    verdict = "It fits" if forecast["fits"] else "It does not fit"
    colour = "yes" if forecast["fits"] else "no"
    range_text = f"{format_bytes(needs['expected'])}, at most {format_bytes(needs['conservative'])}"
    headline = f"{verdict}: {range_text} of {format_bytes(has)} on {forecast['gpu']}"
    ui.label(headline).classes(f"big {colour}").mark("verdict")
    ui.echart(charts.memory_bar(memory)).classes("w-full h-48").props('role="img" aria-label="Memory by kind"')
    seconds, whole = step["seconds"], run["seconds"]
    draw_table(["what", "expected", "range"], [
        ["one step", format_seconds(seconds["expected"]), _range(seconds)],
        ["whole run", format_seconds(whole["expected"]), _range(whole)],
        ["cost", cost_text(run["cost"]), ""],
        ["tokens/s", f"{step['tokens_per_second']:,.0f}", f"mfu {step['mfu']:.0%}"],
        ["parameters", f"{forecast['parameters']['total']:,}", f"{forecast['parameters']['trainable']:,} trained"],
    ])  # fmt: skip


def draw_remarks(forecast: Mapping[str, Any]) -> None:
    """Warnings, folded away."""
    with ui.expansion(f"{len(forecast['warnings'])} remarks").classes("w-full"):
        for warning in forecast["warnings"]:
            ui.label(warning)


def _range(value: Mapping[str, float]) -> str:
    return f"{format_seconds(value['optimistic'])} to {format_seconds(value['conservative'])}"
