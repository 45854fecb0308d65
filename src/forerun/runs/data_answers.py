"""Do the answers that `forerun init` offers work as they are written? Each is made complete, or left out.

An answer is text in a comment, `workload: causal-lm, format: text, fields: {text: body} (why)`: its settings are read
out of that text (`settings_in`), put into the file's (`with_answer`) and tried on the first rows. What has to change
with them (model, padding, lengths, what a label column holds, repairs) is then written behind them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, get_args

import numpy as np
import yaml

from forerun.data.own.canonical import canonical_rows
from forerun.data.own.columns import value_at
from forerun.data.own.delimited import HEADER
from forerun.data.own.formats import SAMPLE_ROWS, RowLayout, layout_of
from forerun.data.own.inspection import estimated_tokens
from forerun.data.own.inspection_record import Histogram, Inspection
from forerun.data.own.labels import label_kind, separator_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import CanonicalRow, texts_of
from forerun.data.own.rows import rows_of
from forerun.errors import BadData, ForerunError
from forerun.runs.data_questions import DataQuestion, inline
from forerun.settings.schema import DataSettings, Repair

DATA_KEYS = ("format", "fields", "labels", "label_separator", "repair")
"""Keys of an answer that stand under `data`."""
FIELD_KEYS = ("header", "split")
"""Keys of an answer that stand in `data.fields`."""
MERGED = ("optimizer", "batch", "schedule")
"""Sections of which an answer names what differs; others it names whole."""
KEYS = (*DATA_KEYS, *FIELD_KEYS, *MERGED, "workload", "model", "preference", "adapter", "precision")
FIRST_KEY = re.compile(rf"(?:^|(?<=[ ,]))(?:{'|'.join(KEYS)}): ")
SINGLE_COLUMN = re.compile(r"column_(\d+)")

SectionsFor = Callable[[str, Inspection, Sequence[CanonicalRow], bool], Mapping[str, Any]]
"""Sections of settings beside `data` for a workload, what was seen, some rows, and whether these are plain texts."""


@dataclass(frozen=True)
class ReadAnswer:
    """An answer taken apart."""

    before: str
    """Words before its settings, if any."""
    settings: Mapping[str, Any]
    after: str
    """Words behind them."""


def read_answer(answer: str) -> ReadAnswer:
    """The settings in an answer, and the words around them; no settings in advice such as to write another file."""
    start = FIRST_KEY.search(answer)
    if start is None:
        return ReadAnswer(answer, {}, "")
    place, settings = start.start(), {}
    while (key := FIRST_KEY.match(answer, place)) is not None:
        end = _end_of_value(answer, key.end())
        settings |= yaml.safe_load(answer[place:end])
        place = end + 2 if answer.startswith(", ", end) else end
        if place == end:
            break
    return ReadAnswer(answer[: start.start()], settings, answer[place:].strip())


def _end_of_value(text: str, place: int) -> int:
    """Where a value of YAML in a line ends: behind its last bracket, or before a comma or a bracket of words."""
    if text[place] not in "{[":
        return min([end for mark in (", ", " (") if (end := text.find(mark, place)) >= 0], default=len(text))
    depth, quote = 0, ""
    for end in range(place, len(text)):
        letter = text[end]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"" and text[:end].rstrip()[-1:] in "{[,:":
            quote = letter
        depth += 0 if quote else (letter in "{[") - (letter in "]}")
        if depth == 0:
            return end + 1
    return len(text)


def with_answer(content: Mapping[str, Any], question: DataQuestion, answer: str) -> dict[str, Any] | None:
    """The settings of a file once an answer to a question is set as it is written; None where it is advice."""
    stated: dict[str, Any] = dict(read_answer(answer).settings)
    if question.setting == "data.labels" and not stated:
        stated = {"labels": answer}
    if not stated:
        return None
    data = {**content["data"], **{key: stated.pop(key) for key in DATA_KEYS if key in stated}}
    data["fields"] = {**data["fields"], **{key: stated.pop(key) for key in FIELD_KEYS if key in stated}}
    merged = {key: {**content.get(key, {}), **stated.pop(key)} for key in MERGED if key in stated}
    return {**content, "data": data, **merged, **stated}


def complete(
    questions: Sequence[DataQuestion], content: Mapping[str, Any], inspection: Inspection, sections_for: SectionsFor
) -> list[DataQuestion]:
    """Questions whose answers work as they are written; answers that the first rows contradict are left out."""
    whole = []
    for question in questions:
        others = [_completed(other, question, content, inspection, sections_for) for other in question.others]
        if working := tuple(other for other in others if other):
            whole.append(replace(question, others=working))
    return whole


def _completed(
    answer: str,
    question: DataQuestion,
    content: Mapping[str, Any],
    inspection: Inspection,
    sections_for: SectionsFor,
) -> str:
    """The answer with all that has to change with it; empty where it cannot be read so."""
    read = read_answer(answer)
    stated = _with_fields(read.settings, content)
    changed = with_answer(content, question, _as_text(ReadAnswer("", stated, ""))) if stated else None
    changed = changed or with_answer(content, question, answer)
    if changed is None:
        return answer
    try:
        layout, records, repairs = _tried(changed, stated)
    except (ForerunError, OSError, yaml.YAMLError):
        return ""
    if not stated:
        return answer  # what a label column holds, a word alone
    if layout.format != content["data"]["format"] or "fields" in stated:
        stated |= {"fields": stated.get("fields", dict(layout.fields))}
    if "label" in layout.fields and layout.labels != content["data"].get("labels"):
        stated["labels"] = layout.labels
    if layout.labels == "several" and layout.separator != "|":
        stated["label_separator"] = layout.separator
    allowed = content["data"].get("repair", [])
    if missing := [word for word in repairs if word not in allowed]:
        stated["repair"] = [*allowed, *missing]
    if changed["workload"] != content["workload"]:
        lengths = [estimated_tokens("\n".join(texts_of(record))) for record in records]
        seen_so = inspection.model_copy(update={"tokens": Histogram.of(np.asarray(lengths))})
        sections = sections_for(changed["workload"], seen_so, records, layout.format == "text")
        stated |= _differing(content, {"preference": {}, "adapter": {}, **sections, **_own(stated)})
    return _as_text(replace(read, settings=stated))


def _own(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {"preference": stated["preference"]} if "preference" in stated else {}


def _with_fields(stated: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an answer with what `data.fields` says of whole files; a first line names its columns."""
    fields = content["data"]["fields"]
    if stated.get("header") == HEADER:
        names = _names_in(content["data"]["source"])
        renamed = {part: names.get(column, column) for part, column in fields.items()}
        return {"fields": {**renamed, "header": HEADER}}
    if "fields" in stated:
        own = {part: fields[part] for part in FIELD_KEYS if part in fields}
        return {**stated, "fields": {**stated["fields"], **{k: v for k, v in own.items() if k not in stated["fields"]}}}
    return dict(stated)


def _names_in(source: str) -> dict[str, str]:
    """Names of a table's columns where its first line says none → where it does."""
    try:
        first = next(rows_of(DataSettings(source=source, repair=_every_repair(), fields={"header": HEADER})))
    except BadData:
        return {}
    return {f"column_{number}": name for number, name in enumerate(first, start=1)}


def _tried(changed: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[RowLayout, list[CanonicalRow], list[Repair]]:
    """How the first rows are read under changed settings, the rows, and the repairs that they need.

    Raises:
        ForerunError: they cannot be read so.
    """
    data = DataSettings.model_validate({**changed["data"], "repair": _every_repair()})
    repairs = Repairs(data.repair)
    rows = list(islice(rows_of(data, repairs), SAMPLE_ROWS))
    column = data.fields.get("label")
    if column is not None and "labels" not in stated and ("fields" in stated or data.labels == "auto"):
        values = [value_at(row, column) for row in rows]
        separator = separator_of(values) or "|"
        kind = label_kind(values, separator, column).kind
        data = data.model_copy(update={"labels": kind, "label_separator": separator})
    layout = layout_of(data, rows, changed["workload"])
    records = list(canonical_rows(rows, layout, str(data.source), repairs))
    if not records:
        raise BadData(f"{data.source}: must hold at least one good row; found none.")
    return layout, records, sorted(repairs.counts)


def _every_repair() -> list[Repair]:
    return [word for word in get_args(Repair) if word != "tool-calls"]


def _differing(content: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """What of other sections is not as in the file; of `MERGED` ones single settings."""
    different = {}
    for name, section in sections.items():
        now = content.get(name, {})
        if name in MERGED:
            section = {key: value for key, value in section.items() if now.get(key) != value}
        if section != now and (section or name not in MERGED):
            different[name] = section
    return different


def _as_text(read: ReadAnswer) -> str:
    settings = ", ".join(f"{key}: {inline(value)}" for key, value in read.settings.items())
    is_bracket = read.after.startswith("(")
    return f"{read.before}{settings}{(' ' if is_bracket else ', ') + read.after if read.after else ''}"
