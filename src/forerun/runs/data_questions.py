"""What only the owner of data knows besides the format: does the first line name columns, are folders labels?"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forerun.data.own.columnar import is_arrow_folder
from forerun.data.own.columns import Column, Row, columns_of, is_empty, value_at
from forerun.data.own.delimited import HEADER, NO_HEADER, name_among_values, text_as_name
from forerun.data.own.file_heads import require_data
from forerun.data.own.folders import folder_label, plan_folder, split_of_name, table_kind
from forerun.data.own.format_parts import ALIASES, PARTS, Proposal
from forerun.data.own.formats import UNPAIRED, are_languages
from forerun.data.own.inspection_record import ChatCount, DataFinding, Inspection, Weight
from forerun.data.own.labels import all_amounts
from forerun.data.own.repairs import MEANINGS
from forerun.data.own.row_kinds import REASONING
from forerun.data.own.rows import NO_ID, plan_of
from forerun.data.own.tagged_lines import is_tagged_lines, looks_tagged
from forerun.data.own.text_files import PLAIN, is_text_file, text_file_kind
from forerun.data.own.value_formats import are_tags, labelled_by_values, with_pair

ANNOTATIONS = ("entities", "spans", "annotations", "annotation")
CHOICES = ("choices", "options", "endings", "candidates", "answer_choices", "multiple_choice_targets")
CHATS = ("messages", "conversations")
VERDICTS = (
    "label score scores rating ratings stars grade quality reward helpfulness correctness coherence harmlessness "
    "correct passed accepted vote votes upvotes feedback thumbs"
)
"""Words in names of columns that say how good an answer is."""
ASKED_LINES = {
    "table": "all lines have as many fields between tabs, semicolons or bars. Are they rows of a table?",
    "sentences": "lines look like words with their tags, blank lines between sentences. Are they?",
}
"""Kind of a file of text that could be text alone → what is asked."""
REASONINGS = (*REASONING, "cot", "chain_of_thought", "rationale", "complex_cot", "thoughts")
SHOWN = 3
"""Folders and columns named in a question."""
OFFERED = 8
"""Readings of the rows that are offered, the likeliest first; how many more there are is said."""
MOST_SHOWN = 60
"""Characters of a text in a question."""
MOST_WORDS = 1.5
"""Mean words of a row below which rows are single words."""


@dataclass(frozen=True)
class DataQuestion:
    """Something that only the owner of the data knows."""

    setting: str
    """Dotted path of the setting that answers it."""
    text: str
    default: str
    others: tuple[str, ...]


def inline(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, float):
        return f"{value:.1e}" if value < 1e-2 else repr(value)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def header_of(source: str) -> tuple[dict[str, str], list[DataQuestion]]:
    """What `data.fields` says of the first line of a table, and what is to be asked of it.

    That it is a row, where it seems one; and that lines of a file of text are rows, or words with tags, where they seem
    to be.

    Raises:
        BadData: the file is another thing than its name says.
    """
    path = Path(source)
    require_data(path)
    is_text = path.is_file() and not table_kind(path) and not is_tagged_lines(path) and is_text_file(path)
    kind = text_file_kind(path) if is_text else ""
    questions = [_of_lines(kind)] if kind in ASKED_LINES else []
    is_table = kind == "table" or (path.is_file() and table_kind(path) in (".csv", ".tsv"))
    is_table = is_table and not is_tagged_lines(path)
    repeat = name_among_values(path) if is_table else None
    sentence = text_as_name(path) if is_table and repeat is None else ""
    if repeat is not None:
        why = f"Its {repeat.name!r} is the value of {repeat.times} of the next {repeat.rows} rows of that column."
    elif sentence:
        why = f"Its {sentence[:MOST_SHOWN]!r} seems a text, as those below it."
    else:
        return {}, questions
    text = f"does the first line name the columns? {why}"
    default = f"header: {NO_HEADER}, it is a row, and the columns are column_1, column_2"
    question = DataQuestion("data.fields", text, default, (f"header: {HEADER}, it names them",))
    return {"header": NO_HEADER}, [*questions, question]


def _of_lines(kind: str) -> DataQuestion:
    text = ASKED_LINES[kind]
    return DataQuestion(
        "data.fields",
        text,
        "they are",
        (f"workload: causal-lm, format: text, fields: {{header: {PLAIN}, text: text}}",),
    )


def other_meanings(source: str, best: Proposal, rows: Sequence[Row]) -> list[DataQuestion]:
    """What the rows could be besides, where names of files, folders or columns say so."""
    path = Path(source)
    if path.is_dir() and not is_arrow_folder(path) and best.format == "labelled":
        return [*_of_partial(path), *_of_folders(path)]
    if path.is_dir() and not is_arrow_folder(path) and (partial := _of_partial(path)):
        return partial
    columns = columns_of(rows)
    if best.format == "labelled" and _are_words(best, rows, columns):
        text = f"each row is a word of {best.fields['text']} and its tag. Are words to be labelled one by one?"
        other = "sentences are: write a word and its tag a line, blank lines between sentences, into a file ….conll"
        return [DataQuestion("workload", text, "words", (f"{other}, and ask forerun init again",))]
    if best.format == "labelled" and best.is_certain:
        return _of_another_text(best, columns)
    if best.format == UNPAIRED:
        return [*_of_desirable(best, columns), *_of_reasoning(best, columns), *_of_choices(best, columns)]
    if best.format in CHATS:
        return _of_verdicts(best, columns)
    if best.format in ("prompt-completion", "alpaca"):
        return [*_of_verdicts(best, columns), *_of_reasoning(best, columns), *_of_choices(best, columns)]
    if best.format != "text":
        return []
    texts = [text for row in rows[:SHOWN] if isinstance(text := row.get(best.fields["text"]), str)]
    if looks_tagged(texts):
        text = "lines look like words with their tags. Are they text all the same?"
        return [DataQuestion("workload", text, "text", ("tags: name the file ….conll, and ask forerun init again",))]
    own = best.fields["text"]
    return _of_labels(best, rows, columns) if best.is_certain else _of_unread(own, rows, columns)


def _are_words(best: Proposal, rows: Sequence[Row], columns: Mapping[str, Column]) -> bool:
    """Whether labels are tags as those of words in sentences, and texts single words."""
    text, label = columns.get(best.fields["text"]), best.fields["label"]
    return text is not None and text.mean_words < MOST_WORDS and are_tags([value_at(row, label) for row in rows])


def part_of(best: Proposal, rows: Sequence[Row]) -> tuple[dict[str, str], list[DataQuestion]]:
    """What `data.fields` says of a column of parts that is not called `split`, and what is to be asked of it."""
    columns = columns_of(rows)
    column = next((c.name for c in columns.values() if c.are_parts and c.name not in best.fields.values()), None)
    if column is None or "split" in columns:
        return {}, []
    text = f"does the column {column!r} say which rows are trained on and which judge? It holds words such as "
    text += f"{', '.join(sorted({str(row[column]) for row in rows})[:SHOWN])}."
    other = f"split: {NO_ID}, it means something else, and parts are drawn anew"
    return {"split": column}, [DataQuestion("data.fields", text, f"split: {column}, it does", (other,))]


def direction_of(best: Proposal) -> list[DataQuestion]:
    """Which of two languages is translated into the other, where columns have their names."""
    if best.format != "translation" or not are_languages(best.fields.values()):
        return []
    source, target = best.fields["source"], best.fields["target"]
    text = f"is {source} translated into {target}? The names of the columns do not say; the first is the source."
    other = f"fields: {inline({'source': target, 'target': source})}"
    return [DataQuestion("data.fields", text, f"source: {source}, target: {target}", (other,))]


def of_tools(inspection: Inspection, count: ChatCount, model: str) -> tuple[Inspection, list[DataQuestion]]:
    """The inspection with what becomes of tools in the chat template of `model`, and whether calls become text."""
    findings = []
    if count.tools and count.are_tools_read is False:
        text = (
            f"{count.tools:,} of {inspection.sample:,} sampled rows describe tools, which the chat template of {model} "
        )
        findings.append(_tool_finding("warning", f"{text}does not write: the model does not learn which it has."))
    if (count.tools or count.calls) and count.are_tools_read is None:
        text = (
            f"{max(count.tools, count.calls):,} of {inspection.sample:,} sampled rows describe or call tools. Whether "
        )
        text += f"the chat template of {model} writes them is not known here, where its tokenizer is not."
        findings.append(_tool_finding("note", text))
    questions = []
    if count.calls and count.are_calls_read is False:
        text = (
            f"{count.calls:,} of {inspection.sample:,} sampled rows call tools, and the chat template of {model} "
            f"leaves calls out: tool-calls {MEANINGS['tool-calls']}. Is that right?"
        )
        questions.append(DataQuestion("data.repair", text, "tool-calls", ("without it they are an error",)))
    if findings:
        inspection = inspection.model_copy(update={"findings": [*findings, *inspection.findings]})
    return inspection, questions


def of_divided(inspection: Inspection, count: ChatCount, model: str) -> Inspection:
    """The inspection with how many chats are several rows, as the chat template of `model` writes them anew."""
    if not count.divided:
        return inspection
    text = (
        f"{count.divided:,} of {inspection.sample:,} sampled chats are several rows, {count.rows:,} in all: the chat "
        f"template of {model} changes what it has written when a message comes (reasoning of earlier answers, a token "
        f"at an answer's end), so each answer is trained behind what stands before it by then."
    )
    remedy = "Nothing is needed; a template that only adds makes one row of a chat, and fewer tokens."
    finding = DataFinding(weight="note", kind="divided", text=text, remedy=remedy)
    return inspection.model_copy(update={
        "findings": [*inspection.findings, finding], "samples_a_row": count.rows / len(count.lengths),
    })  # fmt: skip


def _tool_finding(weight: Weight, text: str) -> DataFinding:
    remedy = "Take a model whose template does (Qwen2.5, Llama 3.1 and later), or write tools into a system message."
    return DataFinding(weight=weight, kind="tools", text=text, remedy=remedy)


def _of_another_text(best: Proposal, columns: Mapping[str, Column]) -> list[DataQuestion]:
    """A text beside the labelled one, which could be read with it."""
    pairs = with_pair(columns, best)
    if not pairs:
        return []
    fields = pairs[0].fields
    text = f"is {fields['text']} the whole text? {pairs[0].reason}"
    other = f"both are: fields: {inline(dict(fields))}"
    return [DataQuestion("data.fields", text, f"text: {fields['text']}, it is", (other,))]


def _of_verdicts(best: Proposal, columns: Mapping[str, Column]) -> list[DataQuestion]:
    """Answers of which a column says how good they are, as TRL's KTO and HelpSteer have them."""
    column = next((c for c in columns.values() if _is_verdict(c) and c.name not in best.fields.values()), None)
    if column is None:
        return []
    says = "says yes of some and no of others" if column.are_flags else "has a number for each"
    text = f"are all answers to be learned? The column {column.name!r} {says}."
    others = [
        "only good ones: give a file without the others; pairs of a good and a bad answer are learned as preference"
    ]
    if column.are_flags:
        fields = inline({**_unpaired_fields(best.fields), "desirable": column.name})
        how = f"workload: preference, format: {UNPAIRED}, fields: {fields}, preference: {{loss: kto}}"
        others.append(f"good ones are to become likelier and bad ones less likely: {how}")
    asks, *answers = (best.fields[part] for part in PARTS[best.format].required)
    if answers and columns[asks].kind == columns[answers[0]].kind == "text":
        others.append(_which_are_good(asks, answers[0], column))
    return [DataQuestion("data.format", text, "all", tuple(others))]


def _which_are_good(asks: str, answers: str, verdict: Column) -> str:
    """The settings that learn to tell good answers from bad ones."""
    fields = inline({"text": asks, "pair": answers, "label": verdict.name})
    kind = "" if verdict.are_flags else ", labels: number"
    return f"which are good: workload: sequence-classification, format: labelled, fields: {fields}{kind}"


def _unpaired_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The parts of a chat, or of a question and an answer, by their names beside a verdict."""
    names = {"messages": "prompt", "conversations": "prompt", "instruction": "prompt", "output": "completion"}
    return {names.get(part, part): column for part, column in fields.items()}


def _of_desirable(best: Proposal, columns: Mapping[str, Column]) -> list[DataQuestion]:
    """Whether a column of yes and no is a verdict on answers, as TRL's KTO and LLaMA-Factory have it."""
    own = {part: column for part, column in best.fields.items() if part != "desirable"}
    kind, verdict = columns[own["prompt"]].kind, columns[best.fields["desirable"]]
    others = []
    if "completion" in own and kind == columns[own["completion"]].kind == "text":
        others.append(_which_are_good(own["prompt"], own["completion"], verdict))
    if "completion" not in own:
        alike = "messages" if kind == "messages" else "conversations"
        own[alike] = own.pop("prompt")
    else:
        alike = "alpaca" if "input" in own else "prompt-completion"
        if alike == "alpaca":
            own = {"instruction": own.pop("prompt"), "output": own.pop("completion"), **own}
    text = (
        f"are answers to become less likely where the column {verdict.name!r} says no, and likelier where it says yes "
        f"(KTO)?"
    )
    others[:0] = [
        f"all are learned alike: workload: causal-lm, format: {alike}, fields: {inline(own)}",
        "only good ones are learned: give a file without the others, and ask forerun init again",
    ]
    return [DataQuestion("workload", text, "they are", tuple(others))]


def _is_verdict(column: Column) -> bool:
    """Whether a column says how good something is: yes and no, or numbers that come again, under a name for that."""
    words = re.split(r"[\W_]+", column.name.lower())
    are_scores = column.kind == "number" and not column.are_running and column.distinct > 1
    return are_scores and not set(words).isdisjoint(VERDICTS.split())


def _of_reasoning(best: Proposal, columns: Mapping[str, Column]) -> list[DataQuestion]:
    """Reasoning in a column of its own, which no part of a question and an answer is."""
    unused = (c for c in columns.values() if c.kind == "text" and c.name not in best.fields.values())
    column = next((c for c in unused if c.name.lower() in REASONINGS), None)
    if column is None:
        return []
    text = f"are answers to be learned without their reasoning? The column {column.name!r} holds some."
    other = "with it: give messages, whose answers have a field reasoning_content, or write it into the answers"
    return [DataQuestion("data.format", text, "without", (other,))]


def _of_partial(folder: Path) -> list[DataQuestion]:
    """Tables of a folder that have only some of the columns to train on."""
    plan = plan_of(folder)
    if plan.kind != "tables" or not plan.left_out:
        return []
    names = ", ".join(path.name for path in plan.left_out[:SHOWN])
    trained = next(path.name for path in plan.files if split_of_name(path) == "train")
    text = f"{len(plan.left_out):,} tables ({names}) lack columns that {trained} has. Are they to be left out?"
    other = "add those columns to them, or name one file in data.source, and others in data.validation and data.test"
    return [DataQuestion("data.source", text, "they are; forerun predict answers their rows", (other,))]


def _of_choices(best: Proposal, columns: Mapping[str, Column]) -> list[DataQuestion]:
    """Answers to choose from, in a column that no part of a question and an answer is."""
    column = next((c for c in columns.values() if c.name.lower() in CHOICES and c.kind != "empty"), None)
    if column is None or column.name in best.fields.values():
        return []
    text = f"are questions to be asked without their choices? The column {column.name!r} holds some."
    other = "with them: write them into the question, and the right one as the answer"
    return [DataQuestion("data.format", text, "without", (other,))]


def _of_folders(folder: Path) -> list[DataQuestion]:
    plan = plan_folder(folder)
    if plan.kind != "labels" or any(len(path.relative_to(folder).parts) != 2 for path in plan.files):
        return []
    names = sorted({label for path in plan.files if (label := folder_label(path)) is not None})
    listing = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    text = f"are the {len(names)} folders ({listing}) labels to learn, or only places?"
    others = tuple(f"places: forerun init --task {task}" for task in ("causal-lm", "masked-lm"))
    return [DataQuestion("workload", text, "labels", others)]


def _of_labels(best: Proposal, rows: Sequence[Row], columns: Mapping[str, Column]) -> list[DataQuestion]:
    """Columns beside a text that could be labels, or have the name of labels and are none."""
    own = best.fields["text"]
    unused = next((c for c in columns.values() if _is_annotation(c) and c.name != own), None)
    if unused is not None:
        example = str(next(row[unused.name] for row in rows if row.get(unused.name)))[:40]
        values = f"its values, such as {example!r}, are no classes"
        other = (
            "places in a text are read as a list of [start, end, label], classes as a column of their names or lists "
            "(Label Studio writes it: export as CSV or JSON-MIN)"
        )
        if unused.kind == "text":
            values = f"{unused.distinct:,} of its {unused.values:,} values differ (such as {example!r})"
            other = "a date or amount is learned as a number: write a column of numbers, name it in data.fields.label, "
            other += "with labels: number"
        text = f"shall the column {unused.name!r} not be learned as classes? {values[0].upper()}{values[1:]}."
        return [DataQuestion("data.format", text, "text alone", (other,))]
    beside = labelled_by_values(columns, own)
    if not beside:
        return _of_unread(own, rows, columns)
    text = f"is the text alone to be learned? {beside[0].reason}{more_than_offered(beside)}"
    others = tuple(
        f"workload: {p.workload}, format: labelled, fields: {inline(dict(p.fields))}" for p in beside[:OFFERED]
    )
    return [DataQuestion("data.format", text, "text alone", others)]


def more_than_offered(proposals: Sequence[Proposal]) -> str:
    """What a question says of readings that it does not offer; empty where it offers all."""
    left = [", ".join(p.fields.values()) for p in proposals[OFFERED:]]
    if not left:
        return ""
    are = "is 1 more reading" if len(left) == 1 else f"are {len(left):,} more readings"
    return f" There {are} of {'; '.join(left[:SHOWN])}{'; …' if len(left) > SHOWN else ''}."


def _of_unread(own: str, rows: Sequence[Row], columns: Mapping[str, Column]) -> list[DataQuestion]:
    """A column of amounts that are no numbers as they are written, or of lists, beside a text; dates are a finding."""
    for column in columns.values():
        values = [value for row in rows if not is_empty(value := row.get(column.name))]
        are_amounts = column.kind == "text" and not column.are_dates and all_amounts([str(value) for value in values])
        is_structure = column.kind in ("mixed", "texts", "mapping") and "." not in column.name
        is_longer = sum(len(str(value)) for value in values) > len(rows) * columns[own].mean_length
        if column.name == own or not values or not (are_amounts or (is_structure and is_longer)):
            continue
        other = "write it into columns of texts, numbers or names of classes, and ask forerun init again"
        what = "no format that is read"
        if are_amounts:
            what = "amounts that are not read as numbers"
            other = "write plain numbers such as 1180.5, and ask forerun init again: they are learned as a number"
        text = f"shall the column {column.name!r} not be learned? Its values, such as {str(values[0])[:40]!r}, are "
        return [DataQuestion("data.format", f"{text}{what}.", "text alone", (other,))]
    return []


def _is_annotation(column: Column) -> bool:
    return column.name.lower() in (*ALIASES["label"], *ANNOTATIONS) and column.kind in ("text", "mixed")
