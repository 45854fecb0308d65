"""Which format are somebody's rows in, and which column plays which part? Told by the names and the values of a sample.

Names are those of TRL, axolotl, LLaMA-Factory, sentence-transformers and of data sets on the Hugging Face hub; a name
counts without regard to case. A name of the format itself weighs `EXACT`, another one `ALIAS`, values alone `VALUES`.
A proposal is certain when no other weighs as much; `data.format` and `data.fields` decide over all of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.data.own.columns import Column, Row, columns_of, value_at
from forerun.data.own.flag_columns import BETWEEN
from forerun.data.own.labels import LabelKind, label_kind
from forerun.errors import BadData, InvalidSettings, nearest
from forerun.settings.schema import DataFormat, DataSettings

EXACT, ALIAS, VALUES = 3, 2, 1
NO_PARTS = ("id", "split", "header")
"""What `data.fields` also says, of whole rows and files."""
SAMPLE_ROWS = 2000
"""Rows that a format is told by."""
ALIASES: dict[str, tuple[str, ...]] = {
    "text": ("text", "content", "sentence", "review", "comment", "tweet", "body", "utterance", "post", "message",
             "document", "article", "question", "query", "title", "code", "story"),
    "pair": ("pair", "text_pair", "sentence2", "question2", "hypothesis", "text2", "text_b", "sentence_b", "passage"),
    "label": ("label", "labels", "class", "category", "categories", "sentiment", "intent", "topic", "topics", "tag",
              "target", "emotion", "emotions", "stars", "rating", "score", "is_duplicate", "y"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner_tags", "pos_tags", "chunk_tags", "ner", "pos", "token_labels", "labels"),
    "messages": ("messages", "conversations", "conversation", "chat", "dialog", "dialogue"),
    "conversations": ("conversations", "conversation", "messages", "chat"),
    "system": ("system", "system_prompt"),
    "instruction": ("instruction", "instructions"),
    "input": ("input", "context"),
    "output": ("output", "response", "answer", "completion"),
    "history": ("history",),
    "prompt": ("prompt", "question", "problem", "instruction", "query"),
    "completion": ("completion", "response", "answer", "canonical_solution", "solution"),
    "chosen": ("chosen", "chosen_response", "accepted", "preferred"),
    "rejected": ("rejected", "rejected_response", "refused", "dispreferred"),
    "anchor": ("anchor", "query", "sentence1", "sentence_a", "question"),
    "positive": ("positive", "pos", "sentence2", "sentence_b", "passage", "answer", "document"),
    "negative": ("negative", "neg", "hard_negative", "negative_1"),
    "score": ("score", "similarity", "similarity_score"),
    "source": ("source", "src", "document", "article", "dialogue", "text", "input", "translation.en"),
    "target": ("target", "tgt", "summary", "highlights", "translation", "output"),
}  # fmt: skip
"""Part of a row → names of its column; the first is the format's own."""


@dataclass(frozen=True)
class FormatParts:
    """What a row of one format consists of."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("causal-lm",)
    """What can be trained on it, the usual one first."""


PARTS: dict[DataFormat, FormatParts] = {
    "tagged": FormatParts(("words", "tags"), (), ("token-classification",)),
    "preference": FormatParts(("chosen", "rejected"), ("prompt", "input", "system"), ("preference",)),
    "messages": FormatParts(("messages",), ("system",)),
    "conversations": FormatParts(("conversations",), ("system",)),
    "triplets": FormatParts(("anchor", "positive", "negative"), (), ("embedding",)),
    "alpaca": FormatParts(("instruction", "output"), ("input", "system", "history"), ("causal-lm", "seq2seq-lm")),
    "prompt-completion": FormatParts(("prompt", "completion"), ("system",), ("causal-lm", "seq2seq-lm")),
    "pairs": FormatParts(("anchor", "positive"), ("score",), ("embedding",)),
    "translation": FormatParts(("source", "target"), (), ("seq2seq-lm",)),
    "labelled": FormatParts(("text", "label"), ("pair",), ("sequence-classification",)),
    "text": FormatParts(("text",), (), ("causal-lm", "masked-lm")),
}
"""Formats, those that say most about a row first."""
PAIRS_OF_TEXTS = (
    ("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence"), ("text", "text_pair"),
    ("query", "passage"),
)  # fmt: skip
"""Columns of two texts with one label, as GLUE, SNLI and Quora name them."""
LISTS = {"words": ("texts",), "tags": ("texts", "numbers"), "messages": ("messages",), "conversations": ("turns",)}
LANGUAGES = (
    "ar", "bg", "bn", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id", "it",
    "ja", "ko", "lt", "lv", "ms", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "sw", "th", "tr", "uk",
    "ur", "vi", "zh",
)  # fmt: skip
"""Names of columns that hold a text and its translation (ISO 639-1)."""
ORIGINS = "source origin domain site dataset subset lang language locale country author user date year license file"
"""Names of columns that say where a text comes from: that is not what somebody wants to learn of it."""
LONG_CHARACTERS = 40
"""Mean length from which a column holds more than names."""
FEW = 20
"""Values below which it says nothing that none comes again."""
MOST_NAMED = 12
"""Columns that an error lists."""
LABEL_CHARACTERS = 80
"""Longest mean of a label's text."""


@dataclass(frozen=True)
class Proposal:
    """One thing that the rows could be."""

    format: DataFormat
    fields: Mapping[str, str]
    """Part → column, all parts that were recognised."""
    workload: str
    is_certain: bool
    reason: str
    """One sentence."""
    weight: int
    """`EXACT`, `ALIAS` or `VALUES`: the least that speaks for one of its columns."""


@dataclass(frozen=True)
class RowLayout:
    """How rows are read: all that is needed to make them canonical."""

    format: DataFormat
    fields: Mapping[str, str]
    labels: LabelKind = "one"
    separator: str = "|"


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
    columns = columns_of(rows)
    fields = fields or {}
    formats = _formats(format, fields, workload, columns)
    proposals = [p for p in (_proposal(name, columns, fields, workload) for name in formats) if p is not None]
    if not proposals and format in ("auto", "labelled") and "labelled" in formats:
        proposals = labelled_by_values(columns)
    if not proposals and format in ("auto", "text") and "text" in formats:
        proposals = _only_text(columns, workload)
    if not proposals:
        raise BadData(_nothing_recognised(columns, formats))
    more = any(p.weight > VALUES for p in proposals if p.format != "text")
    proposals.sort(key=lambda p: (more and p.format == "text", -p.weight))
    if proposals[0].format == "text" and format == "auto" and workload is None and not fields:
        proposals = _labels_beside(columns, proposals[0].fields["text"]) + proposals
    best = proposals[0]
    if best.format == "text" and best.weight == VALUES and "prompt-completion" in formats:
        proposals += _one_text_after_another(columns, best.fields["text"])
    rivals = [p for p in proposals[1:] if p.weight >= best.weight and not _says_less(p, best)]
    is_certain = format != "auto" or (best.weight > VALUES and not rivals)
    others = [p for p in proposals[1:] if not _says_less(p, best)]
    return [replace(best, is_certain=is_certain), *(replace(p, is_certain=False) for p in others)]


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
    if format == "pairs" and by_part["anchor"].lower() in ("sentence1", "sentence_a") and "score" not in by_part:
        return None  # two sentences without a score have a label: SNLI, MRPC
    first = by_part[parts.required[0]]
    if format in ("messages", "conversations"):
        weights = [EXACT]  # by the keys of its lists
    reason = f"the columns {_list(by_part)} are those of {format}."
    other = _other_text(columns, by_part) if format in ("text", "labelled") and not fields else None
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


def _column_of(part: str, columns: Mapping[str, Column], used: set[str]) -> Column | None:
    """The column of a part by its name, if its values are of the part's kind."""
    by_name = {column.name.lower(): column for column in reversed(list(columns.values()))}
    if part in ("source", "target"):
        languages = [c for c in columns.values() if c.name.startswith("translation.") and c.kind == "text"]
        languages = languages or [c for c in columns.values() if c.name.lower() in LANGUAGES and c.kind == "text"]
        if len(languages) == 2:
            return languages[part == "target"]
    for name in ALIASES[part]:
        column = by_name.get(name)
        if column is not None and column.name not in used and _plays(part, column):
            return column
    return None


def _plays(part: str, column: Column) -> bool:
    """Whether a column's values can be that part of a row."""
    if part in LISTS:
        is_spaced = part in ("words", "tags") and column.kind == "text" and column.name.lower() != "labels"
        return column.kind in LISTS[part] or is_spaced
    if part == "label":
        return is_label(column)
    if part == "score":
        return column.kind == "number"
    if part in ("chosen", "rejected", "prompt", "completion"):
        return column.kind in ("text", "number", "messages", "turns", "mapping")
    if part == "output":
        return column.kind in ("text", "number")
    if part == "history":
        return column.kind in ("mixed", "empty")
    if part in ("input", "system"):
        return column.kind in ("text", "number", "empty")
    if part == "pair":
        return column.kind == "text" and column.is_full
    if part in ("source", "target"):
        return column.kind == "text" and not comes_again(column)
    return column.kind == "text"


def comes_again(column: Column) -> bool:
    """Whether the values of a column repeat, as labels and origins do and texts do not."""
    return column.values >= FEW and column.distinct <= column.values // 2


def is_label(column: Column) -> bool:
    """Whether a column's values can be labels: numbers, lists, or short texts that come again."""
    if column.kind in ("number", "texts", "numbers"):
        return True
    is_short = column.kind == "text" and column.mean_length <= LABEL_CHARACTERS
    return is_short and (comes_again(column) or column.values < FEW)


def _two_texts(columns: Mapping[str, Column]) -> tuple[dict[str, str], list[int]]:
    by_name = {column.name.lower(): column for column in columns.values() if column.kind == "text"}
    for one, other in PAIRS_OF_TEXTS:
        if one in by_name and other in by_name:
            return {"text": by_name[one].name, "pair": by_name[other].name}, [EXACT]
    return {}, []


def _other_text(columns: Mapping[str, Column], by_part: Mapping[str, str]) -> Column | None:
    """A column of texts that no part uses although they are as long: the format may be another one."""
    text = columns[by_part["text"]]
    others = [c for c in columns.values() if c.kind == "text" and c.name not in by_part.values() and c.is_full]
    long = (c for c in others if c.mean_length >= max(text.mean_length, LONG_CHARACTERS) and not comes_again(c))
    return next(long, None)


def _one_text_after_another(columns: Mapping[str, Column], first: str) -> list[Proposal]:
    other = _other_text(columns, {"text": first})
    if other is None:
        return []
    fields = {"prompt": first, "completion": other.name}
    reason = f"{other.name} could be the answer to {first}."
    return [Proposal("prompt-completion", fields, "causal-lm", False, reason, VALUES)]


def labelled_by_values(columns: Mapping[str, Column]) -> list[Proposal]:
    """Labelled texts under names that nobody knows: the longest text, and whatever comes again, or says yes or no."""
    texts = [c for c in columns.values() if c.kind == "text" and c.distinct > max(2, c.values // 2)]
    labels = [c for c in columns.values() if is_label(c) and 2 <= c.distinct <= max(2, c.values // 2)]
    if not texts:
        return []
    text = max(texts, key=lambda c: c.mean_length)
    flags = [c.name for c in columns.values() if c.are_flags]
    together = [
        Proposal(
            "labelled", {"text": text.name, "label": BETWEEN.join(flags)}, "sequence-classification", False,
            f"{text.name} has the longest texts, and {len(flags)} columns say yes or no.", VALUES,
        )
    ] if len(flags) > 1 else []  # fmt: skip
    return together + [
        Proposal(
            "labelled", {"text": text.name, "label": label.name}, "sequence-classification", False,
            f"{text.name} has the longest texts, and {label.name} has {label.distinct} different values.", VALUES,
        )
        for label in labels if label.name != text.name
    ]  # fmt: skip


def _labels_beside(columns: Mapping[str, Column], text: str) -> list[Proposal]:
    """Labels under a name that nobody knows, where the rows have nothing else beside a text and what numbers them."""
    others = [c for c in columns.values() if c.name != text and not (c.values >= FEW and c.distinct == c.values)]
    labels = {c.name for c in others if len(others) == 1 and c.name.lower() not in ORIGINS.split()}
    return [p for p in labelled_by_values(columns) if p.fields["text"] == text and p.fields["label"] in labels]


def _only_text(columns: Mapping[str, Column], workload: str | None) -> list[Proposal]:
    texts = sorted((c for c in columns.values() if c.kind == "text"), key=lambda c: -c.mean_length)
    return [
        Proposal("text", {"text": c.name}, workload or "causal-lm", False, f"{c.name} holds texts.", VALUES)
        for c in texts[:3]
    ]


def _says_less(one: Proposal, other: Proposal) -> bool:
    """Whether a proposal only leaves out what the other one uses: the text of labelled text, the pair of a triplet."""
    if one.format == "text":
        return other.weight > VALUES
    return set(one.fields.values()) <= set(other.fields.values()) and one.workload == other.workload


def _list(fields: Mapping[str, str]) -> str:
    return ", ".join(part if part == column else f"{part}: {column}" for part, column in fields.items())


def _nothing_recognised(columns: Mapping[str, Column], formats: Sequence[DataFormat]) -> str:
    if not columns:
        return "data.source: must hold at least one row; found none. Give data."
    named = list(columns.values())[:MOST_NAMED]
    described = ", ".join(f"{c.name} ({c.kind}, {c.distinct} different)" for c in named)
    described += f" and {len(columns) - MOST_NAMED:,} more" if len(columns) > MOST_NAMED else ""
    return (
        f"data.format: needs columns that make up {' or '.join(formats)}; found {described}. "
        f"Say in data.fields which column plays which part: "
        + "; ".join(f"{name}: {', '.join(PARTS[name].required)}" for name in formats)
        + "."
    )
