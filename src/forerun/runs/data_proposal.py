"""From somebody's data to a run that can be started: what `forerun init` proposes, asks and writes.

Nothing is guessed in silence: what could be two things is a question, which stands in the file above the setting that
answers it, with the default marked.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError, safe_open

from forerun.data.own.columns import Row, value_at
from forerun.data.own.flag_columns import with_flags
from forerun.data.own.format_parts import Proposal
from forerun.data.own.formats import SAMPLE_ROWS, UNPAIRED, RowLayout, recognise, require_workload, with_header
from forerun.data.own.inspection import inspect
from forerun.data.own.inspection_record import ChatCount, Inspection
from forerun.data.own.labels import label_kind, separator_of
from forerun.data.own.listed_texts import each_text
from forerun.data.own.marked_answers import with_marks
from forerun.data.own.message_trees import with_trees
from forerun.data.own.repairs import MEANINGS, Repairs
from forerun.data.own.row_kinds import AnsweredRow, CanonicalRow
from forerun.data.own.rows import NO_ID, row_meaning, rows_of
from forerun.data.own.splits import UnknownPart
from forerun.data.own.word_rows import with_sentences
from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device
from forerun.models.build import maximum_length
from forerun.models.catalogue import architectures, model_config
from forerun.models.first_weights import MINILM, is_from_scratch
from forerun.records import Forecast
from forerun.runs.data_answers import DATA_KEYS, complete
from forerun.runs.data_questions import (
    OFFERED,
    DataQuestion,
    direction_of,
    header_of,
    inline,
    more_than_offered,
    of_divided,
    of_tools,
    other_meanings,
    part_of,
)
from forerun.runs.first_settings import (
    UNKNOWN_PARAMETERS,
    ModelChoice,
    answer_settings,
    choose_model,
    first_settings,
    model_kind,
    new_head,
    unpaired_settings,
)
from forerun.settings.load import settings_from
from forerun.settings.schema import DataSettings, ModelSettings, Repair, Settings
from forerun.units import format_bytes, format_count, format_seconds

LEAST_BATCH = 1
MINILM_ROW = "minilm-l6"
LONGEST = 512
"""Tokens, of a model that says nothing of itself."""
Forecaster = Callable[[Settings, Device], Forecast]
ChatCounter = Callable[[Settings, Sequence[CanonicalRow]], ChatCount]
"""Tokens of each row that goes through a chat template, and what becomes of tools there."""


@dataclass(frozen=True)
class DataProposal:
    """What init found out and proposes."""

    content: Mapping[str, Any]
    """The settings, as written."""
    reasons: Mapping[str, str]
    """Why, by dotted path."""
    questions: tuple[DataQuestion, ...]
    inspection: Inspection
    meaning: str
    """What a row of the data is."""
    better: str
    """What model to take where more can be had."""
    device: str
    forecast: Forecast | None = None
    no_forecast: str = ""
    """Why there is none."""
    changes: tuple[str, ...] = field(default=())
    """What was changed so that it fits."""


def propose(
    source: str,
    device: Device,
    forecaster: Forecaster,
    *,
    count_chats: ChatCounter = lambda settings, rows: ChatCount(),
    task: str | None = None,
    model: str | None = None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> DataProposal:
    """Look at the data and work out a run on `device`; `count_chats` says how long chats are for a model.

    Raises:
        BadData: the data cannot be read, or no format is recognised.
        InvalidSettings: `task` is no workload, or none that these rows are for.
    """
    require_workload(task)
    fields, questions = header_of(source)
    repairs = [word for word in get_args(Repair) if word != "tool-calls"]  # only where the chat template needs it
    every_repair = DataSettings(source=source, repair=repairs, fields=fields)
    rows = list(islice(rows_of(every_repair, Repairs(every_repair.repair)), SAMPLE_ROWS))
    proposals = recognise(rows, workload=task)
    best = with_header(proposals[0], fields)
    stated, part_questions = part_of(best, rows)
    best = replace(best, fields={**best.fields, **stated})
    joined = with_sentences(rows, best.fields, source, Repairs(every_repair.repair))
    joined = with_trees(joined, best.fields, source, Repairs(every_repair.repair))
    rows = list(each_text(with_marks(joined, best.fields, source, Repairs(every_repair.repair)), best.fields))
    rows = list(with_flags(rows, best.fields.get("label"), source, Repairs(every_repair.repair)))
    layout, layout_questions = _layout(best, proposals, rows)
    questions += [*layout_questions, *part_questions]
    questions += direction_of(best)
    if task is None:
        questions += other_meanings(source, best, rows)
    on_progress(f"looking at {source} as {best.format}")
    sampled: list[CanonicalRow] = []
    inspection, layout, split_questions = _inspect(every_repair, layout, rows, sampled)
    questions += split_questions
    choice = _choice(model, best.workload, inspection, device, is_text=layout.format == "text")
    chosen_model = ModelSettings(name=choice.name, config=dict(choice.config))
    count = count_chats(Settings(name="x", workload=best.workload, model=chosen_model), sampled)
    if count.lengths:
        inspection = inspection.with_tokens(count.lengths, are_counted=count.are_counted)
    inspection, tool_questions = of_tools(of_divided(inspection, count, choice.name), count, choice.name)
    sections, reasons = _first_sections(best.workload, layout.format, choice, inspection, device, sampled)
    repair = [*inspection.repairs, *(["tool-calls"] if tool_questions else [])]
    stated = _data(DataSettings(source=source, repair=repair), layout)  # type: ignore[list-item]
    content = _content(source, best.workload, stated, sections, inspection.stated_parts)
    questions += [*_repair_questions(inspection, layout.labels == "several"), *tool_questions]
    questions = complete(questions, content, inspection, partial(_sections, model, best.workload, device, count_chats))
    reasons |= {"workload": best.reason, "data.format": best.reason}
    meaning = "a sentence of words" if "sentence" in layout.fields else row_meaning(source)
    proposal = DataProposal(content, reasons, tuple(questions), inspection, meaning, choice.better, device.name)
    return _with_forecast(proposal, device, forecaster, on_progress)


def yaml_text(proposal: DataProposal, command: str) -> str:
    """The file: what was seen, then the settings, each with why, and questions above what answers them."""
    i = proposal.inspection
    lines = [
        f"# Written by: {command}",
        f"# {format_count(i.rows, 'row')} ({proposal.meaning} each): {_parts(i)}; about {i.tokens.at[50]} tokens in "
        f"the middle, {i.tokens.at[95]} at the 95th percentile.",
        *(f"# {finding.weight}: {finding.text} {finding.remedy}" for finding in i.findings),
        f"# {forecast_line(proposal)}",
        *(f"# {change}" for change in proposal.changes),
    ]
    if proposal.better:
        lines.append(f"# A better model: {proposal.better}.")
    if proposal.questions:
        count = len(proposal.questions)
        are = "question below is" if count == 1 else "questions below are"
        lines.append(f"# {count} {are} marked QUESTION; what is set is the default.")
        lines.append(f"# In an answer, {', '.join(DATA_KEYS)} stand under data, all else as it is named.")
    return "\n".join([*lines, *_yaml_lines(proposal.content, proposal, "")]) + "\n"


def forecast_line(proposal: DataProposal) -> str:
    """The forecast in one sentence."""
    forecast = proposal.forecast
    if forecast is None:
        return f"No forecast for {proposal.device}: {proposal.no_forecast}"
    memory = forecast.memory
    cost = "" if forecast.run.cost is None else f", ${forecast.run.cost:,.2f}"
    return (
        f"Forecast on {proposal.device}: {'fits' if forecast.fits else 'DOES NOT FIT'}, "
        f"{format_bytes(memory.device_bytes.conservative)} of {format_bytes(memory.capacity_bytes)} at most, "
        f"{format_seconds(forecast.step.seconds.expected)} a step, {format_seconds(forecast.run.seconds.expected)} the "
        f"run{cost}."
    )


def _layout(best: Proposal, proposals: Sequence[Proposal], rows: Sequence[Row]) -> tuple[RowLayout, list[DataQuestion]]:
    """How rows are read, and what about it is not certain."""
    questions = []
    if not best.is_certain:
        others = tuple(_alternative(p) for p in proposals[1 : 1 + OFFERED])
        default = f"format: {best.format}, fields: {inline(dict(best.fields))}"
        text = f"what are the rows? By the columns alone: {best.reason}{more_than_offered(proposals[1:])}"
        questions.append(DataQuestion("data.format", text, default, others))
    column = best.fields.get("label")
    if column is None:
        return RowLayout(best.format, best.fields), questions
    values = [value_at(row, column) for row in rows]
    separator = separator_of(values) or "|"
    guess = label_kind(values, separator, column)
    if separator != "|" and guess.kind == "several":
        guess = replace(guess, is_certain=False)
    if not guess.is_certain:
        others = tuple(kind for kind in ("one", "several", "number") if kind != guess.kind)
        text = f"what does {column} hold? {guess.reason} `one` class a row, `several`, or a `number` to estimate."
        questions.append(DataQuestion("data.labels", text, guess.kind, others))
    return RowLayout(best.format, best.fields, guess.kind, separator), questions


def _alternative(proposal: Proposal) -> str:
    """Settings of another reading of the rows."""
    return (
        f"workload: {proposal.workload}, format: {proposal.format}, fields: {inline(dict(proposal.fields))} "
        f"({proposal.reason})"
    )


def _inspect(
    data: DataSettings, layout: RowLayout, rows: Sequence[Row], sampled: list[CanonicalRow]
) -> tuple[Inspection, RowLayout, list[DataQuestion]]:
    """What was found; where the column of the split has words for no part, without it, and that as a question."""
    try:
        return inspect(_data(data, layout), layout, rows, sampled), layout, []
    except UnknownPart as error:
        anew = replace(layout, fields={**layout.fields, "split": NO_ID})
        text = (
            f"the column {error.column!r} says {error.word!r}, which is no part. Are all rows to be drawn into parts "
            f"anew, those too that say train or test?"
        )
        other = f"call rows of {error.word!r} train, validation or test in the file, or take them out, and leave split"
        question = DataQuestion("data.fields", text, f"split: {NO_ID}, they are", (f"{other} away here",))
        return inspect(_data(data, anew), anew, rows, sampled), anew, [question]


def _data(data: DataSettings, layout: RowLayout) -> DataSettings:
    stated = {"format": layout.format, "fields": dict(layout.fields)}
    if "label" in layout.fields:
        stated |= {"labels": layout.labels, "label_separator": layout.separator}
    return data.model_copy(update=stated)


def _content(
    source: str, workload: str, data: DataSettings, sections: Mapping[str, Any], parts: Sequence[str]
) -> dict[str, Any]:
    """The settings as they are written, without shares of the `parts` that the data bring."""
    name = source.rstrip("/").rpartition("/")[2].split(".")[0] or "run"
    stated = {key: value for key, value in data.model_dump().items() if key in ("source", "format", "fields")}
    if "label" in data.fields:
        stated["labels"] = data.labels
        if data.labels == "several" and data.label_separator != "|":
            stated["label_separator"] = data.label_separator
    own = {"validation": "val", "test": "test"}
    stated |= {name: getattr(data, name) for name, part in own.items() if part not in parts}
    if data.repair:
        stated["repair"] = list(data.repair)
    content = {"name": name, "workload": workload, "model": sections["model"], "data": stated}
    return content | {key: value for key, value in sections.items() if key != "model"}


def _choice(
    model: str | None, workload: str, inspection: Inspection, device: Device, *, is_text: bool = False
) -> ModelChoice:
    """The user's model, or one that fits the device and the data."""
    if model is None:
        return choose_model(workload, inspection, device, packs=is_text and workload == "causal-lm")
    config = model_config(MINILM_ROW if model.lower() == MINILM else model, {}, "sdpa")
    longest = maximum_length(config) or LONGEST
    rows = [row for row in architectures() if model.lower() in (row.name, *row.aliases)]
    parameters = rows[0].parameters if rows else _stored_parameters(model) or UNKNOWN_PARAMETERS
    scratch = Settings(name="x", workload=workload, model=ModelSettings(name=model))
    is_new = is_from_scratch(scratch)
    has_new_head, why = (False, "") if is_new else new_head(model.lower(), workload)
    return ModelChoice(model, {}, parameters, longest, f"as asked by --model{why}", "", is_new, has_new_head)


def _first_sections(
    workload: str,
    layout_format: str,
    choice: ModelChoice,
    inspection: Inspection,
    device: Device,
    rows: Sequence[CanonicalRow],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Sections of settings beside `data`, and the reason of each setting by its dotted path."""
    sections, reasons = first_settings(workload, choice, inspection, device, layout_format == "text")
    if workload == "causal-lm" and layout_format != "text":
        answers, why = answer_settings(rows, choice, device)
        sections |= answers
        reasons |= why
    if layout_format == UNPAIRED:
        sections["preference"], why = unpaired_settings(inspection)
        reasons |= why
    return sections, reasons


def _sections(
    model: str | None,
    default: str,
    device: Device,
    count_chats: ChatCounter,
    workload: str,
    inspection: Inspection,
    rows: Sequence[CanonicalRow],
    is_text: bool,
) -> Mapping[str, Any]:
    """Sections of settings for another workload than the default, with the user's model where that can learn it."""
    stated = model if model is not None and model_kind(workload) == model_kind(default) else None
    choice = _choice(stated, workload, inspection, device, is_text=is_text)
    if any(isinstance(row, AnsweredRow) and not row.is_plain for row in rows):
        network = ModelSettings(name=choice.name, config=dict(choice.config))
        count = count_chats(Settings(name="x", workload=workload, model=network), rows)
        if count.lengths:
            inspection = inspection.with_tokens(count.lengths, are_counted=count.are_counted)
    return first_settings(workload, choice, inspection, device, is_text)[0]


def _stored_parameters(model: str) -> int:
    """Numbers in the weights of a local folder; 0 where there are none that can be counted."""
    count = 0
    for path in sorted(Path(model).glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except (OSError, SafetensorError):  # the forecast names what is wrong with it
            return 0
    return count


def _repair_questions(inspection: Inspection, are_several: bool) -> list[DataQuestion]:
    questions = []
    for kind, count in inspection.repairs.items():
        text = f"{count:,} bad {'row' if count == 1 else 'rows'}: {kind} {MEANINGS[kind]}. Is that right?"  # type: ignore[index]
        others = ["without it they are an error"]
        if kind == "missing-labels" and are_several:
            others.append(f"none-apply in its place, which {MEANINGS['none-apply']}")
        questions.append(DataQuestion("data.repair", text, kind, tuple(others)))
    return questions


def _with_forecast(
    proposal: DataProposal, device: Device, forecaster: Forecaster, on_progress: Callable[[str], None]
) -> DataProposal:
    """The proposal with its forecast; micro-batches are halved until it fits."""
    content, changes = {**proposal.content}, []
    while True:
        settings = settings_from(content)
        batch = settings.batch
        on_progress(f"forecasting {batch.micro_batch_size} samples at once on {device.name}")
        try:
            forecast = forecaster(settings, device)
        except ForerunError as error:
            return replace(proposal, content=content, no_forecast=str(error))
        if forecast.fits or batch.micro_batch_size <= LEAST_BATCH:
            return replace(proposal, content=content, forecast=forecast, changes=tuple(changes))
        smaller = {
            "micro_batch_size": batch.micro_batch_size // 2,
            "gradient_accumulation_steps": batch.gradient_accumulation_steps * 2,
        }
        changes.append(f"{batch.micro_batch_size} samples at once do not fit {device.name}: half as many.")
        content["batch"] = {**content["batch"], **smaller}


def _yaml_lines(content: Mapping[str, Any], proposal: DataProposal, prefix: str) -> list[str]:
    lines = []
    indent = "  " * prefix.count(".")
    for key, value in content.items():
        path = f"{prefix}{key}"
        for question in proposal.questions:
            if question.setting == path:
                lines.append(f"{indent}# QUESTION: {question.text} Default: {question.default}.")
                lines += [f"{indent}#   or: {other}" for other in question.others]
        if isinstance(value, Mapping) and key not in ("fields", "config"):
            lines += [f"{indent}{key}:", *_yaml_lines(value, proposal, f"{path}.")]
        else:
            reason = proposal.reasons.get(path)
            lines.append(f"{indent}{key}: {inline(value)}{f'  # {reason}' if reason else ''}")
    return lines


def _parts(inspection: Inspection) -> str:
    own = " and ".join(part for part in inspection.stated_parts if part != "train")
    counts = ", ".join(f"{count:,} {part}" for part, count in inspection.parts.items())
    return f"{counts} ({own} as the data say)" if own else counts
