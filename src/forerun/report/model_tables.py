"""What do `forerun models` and `forerun models show` print? Records in, rich tables out; GiB are binary."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.models.footprint import ModelDescription, TrainingOption
from forerun.models.rows import Architecture, count_text
from forerun.report.terminal import FAINT
from forerun.units import format_bytes, format_seconds

CAPTION = (
    "Parameters count each shared tensor once. Any other hub id or local folder whose config transformers can build "
    "works too. `forerun models show NAME` has sizes, sources and what fits where."
)
COARSE = (
    "Coarse: weights and optimizer states alone, the least that can be. Activations, temporaries and the CUDA context "
    "come on top; --gpu NAME forecasts them."
)


def models_table(rows: Sequence[Architecture]) -> Table:
    """The catalogue of models, by family as it is listed."""
    table = _table("model", "parameters", "family", "hub id", caption=CAPTION)
    table.columns[0].min_width = max((len(row.name) for row in rows), default=0)
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(row.name, count_text(row.parameters), row.family, next(iter(row.hub_ids), "-"))
    return table


def model_view(model: ModelDescription) -> RenderableType:
    """One model: sizes, sources, the coarse table, and forecasts where GPUs were named."""
    shape = {key.replace("_", " "): value for key, value in model.shape.model_dump().items() if value is not None}
    facts = _table("model", model.name)
    facts.add_row("parameters", f"{model.parameters:,} ({count_text(model.parameters)}, as {model.parameters_of})")
    if model.published_bytes is not None:
        each = model.published_bytes / model.parameters
        facts.add_row("files", f"{format_bytes(model.published_bytes)} of safetensors, {each:.2f} bytes a parameter")
    facts.add_row("sizes", ", ".join(f"{key} {value:,}" for key, value in shape.items()))
    facts.add_row("hub ids", Text(", ".join(model.hub_ids) or "-"))
    facts.add_row("licence", Text(model.licence or "not recorded; see the model's page"))
    facts.add_row("source", Text(model.source))
    coarse = _table("at least", "size", "consumer", "workstation", "data centre", caption=COARSE)
    for row in model.coarse:
        names = [row.cards.get(segment, "none") for segment in ("consumer", "workstation", "datacenter")]
        coarse.add_row(row.what, format_bytes(row.needs_bytes), *names)
    for column in coarse.columns:
        column.no_wrap = True
    return Group(facts, Text(), coarse, *([Text(), _options(model.options)] if model.options else []))


def _options(options: Sequence[TrainingOption]) -> Table:
    caption = "Forecast: micro-batch 1, blocks recomputed, up to 512 tokens; --set changes it."
    table = _table("gpu", "way", "needs / has", "fits", "a step", caption=caption)
    for option in options:
        if option.refusal:
            table.add_row(option.gpu, option.way, Text(option.refusal, style=FAINT), "-", "-")
            continue
        needs = f"{format_bytes(option.device_bytes or 0)} / {format_bytes(option.capacity_bytes or 0)}"
        answer, step = "yes" if option.fits else "no", format_seconds(option.step_seconds or 0.0)
        table.add_row(option.gpu, option.way, needs, answer, step)
    return table


def _table(*headings: str, caption: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, caption=caption)
    table.caption_justify = "left"
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    return table
