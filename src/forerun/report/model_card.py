"""The card of an exported model, `README.md` in its folder: what it was made of, how good it is, and what it cost.

Only tables without texts of the data are in it: a card is published where the data may not be. Sources are named by
their last part.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from forerun.records import Forecast, Measurement, Range
from forerun.report.html import PageContent, criterion_word, flat, headline, verdict_rows
from forerun.report.plain_tables import Part, PlainTable, as_markdown
from forerun.report.tables import ResultTable, cell_text
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_seconds

PIPELINES = {
    "sequence-classification": "text-classification", "token-classification": "token-classification",
    "causal-lm": "text-generation", "preference": "text-generation", "masked-lm": "fill-mask",
    "embedding": "feature-extraction",
}  # fmt: skip
"""The Hugging Face hub's names of tasks, which its pages filter by."""
PEFT_CLASSES = {
    "sequence-classification": "AutoPeftModelForSequenceClassification",
    "token-classification": "AutoPeftModelForTokenClassification", "causal-lm": "AutoPeftModelForCausalLM",
    "preference": "AutoPeftModelForCausalLM", "seq2seq-lm": "AutoPeftModelForSeq2SeqLM",
    "embedding": "AutoPeftModelForFeatureExtraction",
}  # fmt: skip
"""What of peft opens an adapter of each workload."""
SAFE_TABLES = ("Test, beside its baselines", "By label", "By tag", "Calibration", "By length", "Rows")
"""Titles of tables that quote no row."""
PATHS = ("data.source", "data.validation", "data.test")


def model_card(content: PageContent, kind: str, note: str = "") -> str:
    """Markdown of a run's card; `kind` is what was exported, `note` how its outputs are read."""
    settings, measured = content.settings, content.measurement
    front = {"library_name": "peft" if kind == "adapter" else "transformers", "tags": ["forerun"]}
    if settings["workload"] in PIPELINES:
        front["pipeline_tag"] = PIPELINES[settings["workload"]]
    parts: list[Part] = [
        "## Data", _data(settings["data"]),
        *_tables(content.tables, ("Rows",)), "## Scores", *_tables(content.tables, SAFE_TABLES[:-1]),
        *_criteria(content), "## Forecast and measured cost", _cost(content.forecast, measured),
        PlainTable(title="", columns=["quantity", "forecast", "measured", "error", "range"],
                   rows=[list(row) for row in verdict_rows(content.verdict)]),
        "## Settings", PlainTable(title="", columns=["setting", "value"], rows=_changed(settings)),
        "All settings are in forerun.json. Nobody looked for bias, for personal data in what the model writes, or "
        "at other data than these.",
    ]  # fmt: skip
    header = yaml.safe_dump(front, sort_keys=True)
    title = as_markdown(
        [f"# {settings['name']}", headline(content), _summary(content, kind), *([note] if note else [])]
    )
    return "\n".join([f"---\n{header}---\n", title, *_opening(settings, kind), as_markdown(parts)])


def _summary(content: PageContent, kind: str) -> str:
    settings, counts = content.settings, content.forecast.parameters
    return (
        f"{settings['workload']} from {_last(settings['model']['name'])}, {kind}: {counts.total:,} parameters, "
        f"{counts.trainable:,} trained. Run {content.run['id']} on {content.forecast.gpu}."
    )


def _opening(settings: dict[str, Any], kind: str) -> Iterator[str]:
    """How peft opens an adapter trained on own data: what of it the name of the base does not say."""
    if kind != "adapter" or not settings["data"]["source"] or settings["workload"] not in PEFT_CLASSES:
        return
    name, options = PEFT_CLASSES[settings["workload"]], ""
    imports, names = [f"from peft import {name}"], []
    if settings["data"]["labels"] == "number":
        options += ", num_labels=1"
    elif "classification" in settings["workload"]:
        imports, names = ["import json", *imports], ['names = json.load(open("task.json"))["label_names"]']
        options += ", id2label=dict(enumerate(names))"
    if settings["quantization"] != "none":
        imports.append("from transformers import BitsAndBytesConfig")
        options += f", quantization_config=BitsAndBytesConfig({_quantization(settings['quantization'])})"
    code = "\n".join([*imports, "", *names, f'model = {name}.from_pretrained("."{options})'])
    yield (
        f"## Use\n\nIn this folder:\n\n```python\n{code}\n```\n\nThe base is named in `adapter_config.json` "
        "(`base_model_name_or_path`). A folder there is one of the machine that wrote this: elsewhere, put yours "
        "in its place.\n"
    )


def _quantization(kind: str) -> str:
    if kind == "int8":
        return "load_in_8bit=True"
    double = ", bnb_4bit_use_double_quant=True" if kind == "nf4-double" else ""
    return f'load_in_4bit=True, bnb_4bit_quant_type="nf4"{double}'


def _data(data: dict[str, Any]) -> str:
    columns = ", ".join(f"{part} from {column}" for part, column in data["fields"].items())
    repairs = f" Repairs that were allowed: {', '.join(data['repair'])}." if data["repair"] else ""
    source = _last(data["source"]) if data["source"] else "that of its recipe"
    return f"Source: {source}. Rows of {data['format']}{f': {columns}' if columns else ''}.{repairs}"


def _tables(tables: list[ResultTable], titles: tuple[str, ...]) -> Iterator[Part]:
    for table in tables:
        if table.title in titles:
            rows = [[_last(cell_text(cell)) if table.title == "Rows" else cell_text(cell) for cell in row]
                    for row in table.rows]  # fmt: skip
            yield PlainTable(title=table.title, columns=table.columns, rows=rows)
            if table.note and table.title != "Rows":
                yield table.note


def _criteria(content: PageContent) -> Iterator[Part]:
    if content.verdict is not None:
        rows = [
            [each.name, f"{each.value:.3f}", each.rule,
             criterion_word(each)]
            for each in content.verdict.criteria
        ]  # fmt: skip
        yield PlainTable(title="Criteria", columns=["criterion", "value", "rule", ""], rows=rows)


def _cost(forecast: Forecast, measured: Measurement | None) -> str:
    expected: Range = forecast.run.seconds
    sentences = [
        f"Forecast for {forecast.gpu}: {format_seconds(expected.optimistic)} to "
        f"{format_seconds(expected.conservative)}, {_price(forecast.run.cost)}, at most "
        f"{format_bytes(forecast.memory.device_bytes.conservative)} of memory."
    ]
    if measured is not None:
        sentences.append(f"Measured: {format_seconds(measured.run.seconds)}, {_price(measured.run.cost)}.")
    return " ".join(sentences)


def _price(cost: float | None) -> str:
    return "no price known" if cost is None else f"${cost:,.2f}"


def _changed(settings: dict[str, Any]) -> list[list[str]]:
    """What the settings say otherwise than the defaults."""
    plain = Settings(name="x", workload=settings["workload"], model={"name": settings["model"]["name"]})  # type: ignore[arg-type]
    defaults = dict(flat(plain.model_dump(mode="json")))
    rows = []
    for path, value in flat(settings):
        is_new = path == "model.name" or defaults.get(path) != value
        if is_new and path not in ("name", "workload") and not path.startswith("data.fields."):
            rows.append([path, _last(value) if path in (*PATHS, "model.name") else value])
    return rows


def _last(text: str) -> str:
    """A path by its last part, also where it begins a list of places; other texts as they are."""
    return " ".join(word.rstrip("/").rpartition("/")[2] if "/" in word else word for word in text.split(" "))
