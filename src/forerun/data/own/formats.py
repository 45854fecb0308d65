"""Which format are somebody's rows in, and which column plays which part? Told by the names and the values of a sample.

A name (`format_parts.py`) counts without regard to case. A name of the format itself weighs `EXACT`, another one
`ALIAS`, values alone (`value_formats.py`) `VALUES`. A proposal is certain when no other weighs as much; `data.format`
and `data.fields` decide over all of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.data.own.columns import Column, Row, columns_of, value_at
from forerun.data.own.documented_code import documented_code
from forerun.data.own.format_parts import (
    ALIAS,
    ALIASES,
    ANSWERED_TEXTS,
    EXACT,
    LANGUAGES,
    LISTED,
    PAIRS_OF_TEXTS,
    PARTS,
    SPEAKERS,
    VALUES,
    Proposal,
)
from forerun.data.own.labels import LabelKind, label_kind
from forerun.data.own.marked_answers import marked_by_names
from forerun.data.own.message_trees import trees_by_names
from forerun.data.own.value_formats import (
    by_values,
    comes_again,
    have_tag_each,
    is_label,
    is_text_of_digits,
    labelled_by_values,
    labels_beside,
    lists_beside,
    one_text_after_another,
    other_text,
    tagged_by_values,
    with_pair,
)
from forerun.data.own.word_rows import sentences_by_values
from forerun.errors import BadData, InvalidSettings, nearest
from forerun.settings.schema import DataFormat, DataSettings

NO_PARTS = ("id", "split", "header")
"""What `data.fields` also says, of whole rows and files."""
SAMPLE_ROWS = 2000
"""Rows that a format is told by."""
MOST_NAMED = 12
"""Columns that an error lists."""
LISTS = {"words": ("texts",), "tags": ("texts", "numbers"), "messages": ("messages",), "conversations": ("turns",)}
ANSWER = "answer"
UNPAIRED: DataFormat = "unpaired-preference"
TRANSLATION = "translation."


@dataclass(frozen=True)
class RowLayout:
    """How rows are read: all that is needed to make them canonical."""

    format: DataFormat
    fields: Mapping[str, str]
    labels: LabelKind = "one"
    separator: str = "|"


def require_workload(task: str | None) -> None:
    """Refuse the name of a workload that no rows are for.

    Raises:
        InvalidSettings: with those that there are.
    """
    workloads = sorted({workload for parts in PARTS.values() for workload in parts.workloads})
    if task is not None and task not in workloads:
        raise InvalidSettings(
            f"--task: one of {', '.join(workloads)}; found {task!r}. Nearest: {nearest(task, workloads)}."
        )


def recognise(
    rows: Iterable[Row],
    format: DataFormat = "auto",
    fields: Mapping[str, str] | None = None,
    workload: str | None = None,
) -> list[Proposal]:
    """What the rows of a sample could be, the most likely first; never empty.

    A `format`, `fields` and a `workload` that are given narrow it down.

    Raises:
        BadData: there are no rows, or nothing that is recognised.
        InvalidSettings: `fields` names a part that no format has, or a format that `workload` does not train on.
    """
    rows = list(rows)
    columns = columns_of(rows)
    fields = fields or {}
    formats = _formats(format, fields, workload, columns)
    proposals = [p for p in (_proposal(name, columns, fields, workload) for name in formats) if p is not None]
    proposals = [p for p in proposals if fields or _has_even_tags(p, columns, rows)]
    if not proposals and format in ("auto", "labelled", "text"):
        proposals = by_values(columns, formats, workload)
    if "tagged" in formats and not fields and all(p.weight == VALUES for p in proposals):
        proposals = [*tagged_by_values(columns, rows), *proposals]
    if not proposals:
        raise BadData(_nothing_recognised(columns, formats))
    more = any(p.weight > VALUES for p in proposals if p.format != "text")
    proposals.sort(key=lambda p: (more and p.format == "text", -p.weight))
    if format == "auto" and not fields:
        proposals = _with_alternatives(proposals, columns, formats)
    if "tagged" in formats and not fields:
        proposals[:0] = sentences_by_values(columns, rows)
    if not fields:
        by_marks = [*trees_by_names(columns), *marked_by_names(columns)]
        proposals[:0] = [p for p in by_marks if p.format in formats]
    if format == "auto" and not fields and (proposals[0].format == "text" or proposals[0].weight == VALUES):
        proposals[:0] = documented_code(columns, rows, formats, workload)
    best = proposals[0]
    rivals = [p for p in proposals[1:] if p.weight >= best.weight and not _says_less(p, best)]
    is_certain = format != "auto" or (best.weight > VALUES and not rivals)
    others = [p for p in proposals[1:] if not _says_less(p, best)]
    return [replace(best, is_certain=is_certain), *(replace(p, is_certain=False) for p in others)]


def _with_alternatives(
    proposals: list[Proposal], columns: Mapping[str, Column], formats: Sequence[DataFormat]
) -> list[Proposal]:
    """The proposals, with those that their own columns, or values beside them, speak for."""
    if proposals[0].format == "text" and "labelled" in formats:
        text = proposals[0].fields["text"]
        labelled = [p for p in labelled_by_values(columns, text) if p not in proposals]
        likely = [p for p in labels_beside(columns, text) if p not in proposals]
        proposals = [*likely, *proposals, *(p for p in labelled if p not in likely)]
    best = proposals[0]
    if best.format == "text" and best.weight == VALUES and "prompt-completion" in formats:
        proposals += one_text_after_another(columns, best.fields["text"])
    if best.format == "labelled":
        proposals[1:1] = [*with_pair(columns, best), *lists_beside(columns, best)]
    return proposals


def layout_of(data: DataSettings, rows: Sequence[Row], workload: str | None = None) -> RowLayout:
    """How rows are read under `data`: what it states, and what is certain about a sample of the rows.

    Raises:
        BadData: nothing is recognised, or it could be two things and `data` does not decide.
        InvalidSettings: `data.fields` and `data.format` do not go together.
    """
    proposals = recognise(rows, data.format, data.fields, workload)
    best = with_header(proposals[0], data.fields)
    if not best.is_certain:
        others = ", or ".join(f"{p.format} ({_list(p.fields)})" for p in proposals)
        raise BadData(
            f"{data.source}: data.format: auto needs rows that can be only one thing; found what could be {others}. "
            f"Set data.format and data.fields, as forerun init does."
        )
    column = best.fields.get("label")
    if column is None:
        return RowLayout(best.format, best.fields, separator=data.label_separator)
    if data.labels != "auto":
        return RowLayout(best.format, best.fields, data.labels, data.label_separator)
    guess = label_kind([value_at(row, column) for row in rows], data.label_separator, column)
    if not guess.is_certain:
        raise BadData(
            f"{data.source}: data.labels: auto needs labels that can be only one thing; found that {guess.reason} "
            f"Set data.labels to one (classes), several or number (a scale)."
        )
    return RowLayout(best.format, best.fields, guess.kind, data.label_separator)


def with_header(proposal: Proposal, fields: Mapping[str, str]) -> Proposal:
    """The proposal, which remembers whether the first line names columns where `fields` says so."""
    stated = {part: fields[part] for part in ("header",) if part in fields}
    return replace(proposal, fields={**proposal.fields, **stated})


def _formats(
    format: DataFormat, fields: Mapping[str, str], workload: str | None, columns: Mapping[str, Column]
) -> list[DataFormat]:
    """Formats that the settings leave open."""
    all_parts = sorted({part for parts in PARTS.values() for part in (*parts.required, *parts.optional)})
    for part, column in fields.items():
        if part not in (*all_parts, *NO_PARTS):
            raise InvalidSettings(
                f"data.fields.{part}: no part of a row of any format. Nearest: {nearest(part, all_parts)}."
            )
        if column not in columns and part not in NO_PARTS:
            raise BadData(
                f"data.fields.{part}: a column of the data; found {column!r}, which is none of {', '.join(columns)}."
            )
    names: list[DataFormat] = [format] if format != "auto" else list(PARTS)
    if workload is not None and any(workload in parts.workloads for parts in PARTS.values()):
        names = [name for name in names if workload in PARTS[name].workloads]
    parts = set(fields) - set(NO_PARTS)
    fitting: list[DataFormat] = [name for name in names if parts <= {*PARTS[name].required, *PARTS[name].optional}]
    if not fitting:
        raise InvalidSettings(
            f"data.format: a format with the parts {', '.join(sorted(parts)) or '(none stated)'} that "
            f"{workload or 'a workload'} trains on; found {format}. Formats: "
            + "; ".join(f"{name}: {', '.join((*p.required, *p.optional))}" for name, p in PARTS.items())
        )
    return fitting


def _proposal(
    format: DataFormat, columns: Mapping[str, Column], fields: Mapping[str, str], workload: str | None
) -> Proposal | None:
    """The format with all its required parts among the columns, or None."""
    parts = PARTS[format]
    by_part, weights = _two_texts(columns) if format == "labelled" and not fields else ({}, [])
    for part in (*parts.required, *parts.optional):
        if part == "tools" and workload == "seq2seq-lm":
            continue  # it has no chat template, which would write them
        if part in fields:
            by_part[part] = fields[part]
            weights.append(EXACT)
        elif part not in by_part and (hit := _column_of(part, columns, set(by_part.values()))) is not None:
            by_part[part] = hit.name
            if part in parts.required:
                weights.append(EXACT if hit.name.lower() == ALIASES[part][0] else ALIAS)
    if any(part not in by_part for part in parts.required):
        return None
    if format == "pairs" and "score" in by_part and not fields and workload is None:
        return None  # how alike two texts are is a number to estimate: no loss of `embedding` reads it
    if format == "pairs" and not fields and workload is None and _answer_of_two_texts(columns) is not None:
        return None  # two texts with yes or no are judged, as BoolQ's
    if format == "pairs" and by_part["anchor"].lower() in ("sentence1", "sentence_a") and "score" not in by_part:
        return None  # two sentences without a score have a label: SNLI, MRPC
    if format == "alpaca" and by_part["instruction"].lower() == "question" and "input" not in by_part and not fields:
        return None  # a question is one of alpaca beside what it is asked about: SQuAD
    asks, answers = SPEAKERS
    is_spoken = format == "prompt-completion" and not fields and by_part["prompt"].lower() in asks
    if is_spoken and by_part["completion"].lower() not in answers:
        return None
    if format == UNPAIRED and not (fields or workload or _are_judged(by_part, columns)):
        return None
    first = by_part[parts.required[0]]
    if format in ("messages", "conversations", UNPAIRED):
        weights = [EXACT]  # by the keys of its lists, or beside them
    reason = f"the columns {_list(by_part)} are those of {format}."
    other = other_text(columns, by_part) if format in ("text", "labelled") and not fields else None
    if other is not None:
        weights.append(VALUES)
        reason = f"{reason[:-1]}, but {other.name} also holds long texts."
    elif fields:
        reason = f"data.fields names {_list(fields)}."
    elif format in ("messages", "conversations"):
        reason = f"{first} holds lists of {'role and content' if format == 'messages' else 'from and value'}."
    return Proposal(
        format, by_part, workload if workload in parts.workloads else parts.workloads[0], True, reason, min(weights)
    )


def _are_judged(by_part: Mapping[str, str], columns: Mapping[str, Column]) -> bool:
    """Whether a column of yes and no says which answers are desirable: of whole chats, under TRL's names, or as
    LLaMA-Factory's `kto_tag`; questions and answers with a label are pairs of texts more often."""
    prompt, answer, verdict = (by_part.get(part, "").lower() for part in ("prompt", "completion", "desirable"))
    if not answer:
        return columns[by_part["prompt"]].kind in ("messages", "turns")
    return verdict != "label" or (prompt, answer) == ("prompt", "completion")


def _column_of(part: str, columns: Mapping[str, Column], used: set[str]) -> Column | None:
    """The column of a part by its name, if its values are of the part's kind."""
    by_name = {column.name.lower(): column for column in reversed(list(columns.values()))}
    if part in ("source", "target"):
        texts = [c for c in columns.values() if c.kind == "text"]
        languages = [c for c in texts if c.name.startswith(TRANSLATION)]
        languages = languages or [c for c in texts if c.name.lower() in LANGUAGES]
        if len(languages) == 2:
            return languages[part == "target"]
    for name in ALIASES[part]:
        column = by_name.get(name)
        if column is not None and column.name not in used and _plays(part, column):
            return column
    if part == "label":
        return _answer_of_two_texts(columns) if len(used) > 1 else None
    if part == "spans":
        return next((c for c in columns.values() if c.are_spans), None)
    if part == "text":
        digits = (by_name[name] for name in ALIASES[part] if name in by_name and by_name[name].name not in used)
        return next((c for c in digits if is_text_of_digits(c, columns)), None)
    return None


def _answer_of_two_texts(columns: Mapping[str, Column]) -> Column | None:
    """A column `answer` that says yes or no."""
    return next((c for c in columns.values() if c.are_flags and c.name.lower() == ANSWER), None)


def are_languages(names: Iterable[str]) -> bool:
    """Whether columns are named by languages, which say nothing of what is translated into what."""
    return all(name.startswith(TRANSLATION) or name.lower() in LANGUAGES for name in names)


def _has_even_tags(proposal: Proposal, columns: Mapping[str, Column], rows: Sequence[Row]) -> bool:
    """Whether a proposal whose words are texts has a tag for each of them; those of lists are checked row by row."""
    if proposal.format != "tagged":
        return True
    words, tags = proposal.fields["words"], proposal.fields["tags"]
    return columns[words].kind != "text" or have_tag_each(rows, words, tags)


def _plays(part: str, column: Column) -> bool:
    """Whether a column's values can be that part of a row."""
    if part in LISTS:
        is_spaced = part in ("words", "tags") and column.kind == "text" and column.name.lower() != "labels"
        return column.kind in LISTS[part] or is_spaced
    if part == "label":
        return is_label(column)
    if part == "desirable":
        return column.are_flags
    if part == "spans":
        return column.are_spans
    if part in ("positive", "negative") and column.name.lower() in LISTED:
        return column.kind in ("text", "texts")
    if part == "score":
        return column.kind == "number"
    if part in ("completion", "output") and column.are_flags:
        return False  # yes and no are labels
    if part in ("chosen", "rejected", "prompt", "completion"):
        return column.kind in ("text", "number", "messages", "turns", "mapping")
    if part == "output":
        return column.kind in ("text", "number")
    if part == "tools":
        return column.has_tools or column.kind == "empty"
    if part == "history":
        return column.kind in ("mixed", "empty")
    if part in ("input", "system"):
        return column.kind in ("text", "number", "empty") or (part == "system" and column.is_message)
    if part == "text":
        return column.kind == "text" and (column.distinct > 2 or not comes_again(column))
    if part == "pair":
        return column.kind == "text" and column.is_full
    if part in ("source", "target"):
        return column.kind == "text" and not comes_again(column)
    return column.kind == "text"


def _two_texts(columns: Mapping[str, Column]) -> tuple[dict[str, str], list[int]]:
    by_name = {column.name.lower(): column for column in columns.values() if column.kind == "text"}
    for one, other in (*PAIRS_OF_TEXTS, *ANSWERED_TEXTS):
        if one in by_name and other in by_name:
            weight = EXACT if (one, other) in PAIRS_OF_TEXTS else ALIAS
            return {"text": by_name[one].name, "pair": by_name[other].name}, [weight]
    return {}, []


def _says_less(one: Proposal, other: Proposal) -> bool:
    """Whether a proposal only leaves out what the other one uses: the text of labelled text, the pair of a triplet."""
    if one.format == "text":
        return other.weight > VALUES
    are_all_used = set(one.fields.values()) <= set(other.fields.values())
    return are_all_used and (one.workload == other.workload or other.format == UNPAIRED)


def _list(fields: Mapping[str, str]) -> str:
    return ", ".join(part if part == column else f"{part}: {column}" for part, column in fields.items())


def _nothing_recognised(columns: Mapping[str, Column], formats: Sequence[DataFormat]) -> str:
    if not columns:
        return "data.source: must hold at least one row; found none. Give data."
    named = list(columns.values())[:MOST_NAMED]
    described = ", ".join(f"{c.name} ({c.kind}, {c.distinct} different)" for c in named)
    described += f" and {len(columns) - MOST_NAMED:,} more" if len(columns) > MOST_NAMED else ""
    if all(c.kind == "number" or (c.kind == "text" and comes_again(c)) for c in columns.values()):
        return (
            f"data.format: needs a column of texts; found {described}: numbers and classes alone. Name a file that has "
            f"texts; tables without any are for other tools (gradient boosting)."
        )
    return (
        f"data.format: needs columns that make up {' or '.join(formats)}; found {described}. "
        f"Say in data.fields which column plays which part: "
        + "; ".join(f"{name}: {', '.join(PARTS[name].required)}" for name in formats)
        + "."
    )
