"""What could rows be whose columns have names that nobody knows? Told by values: how long, and whether they repeat.

Of labels those are the default that have a usual name for one, or that nothing else beside the text is as likely to be
(`label_ranks.py`); with several alike the text alone is, and each is offered, the likeliest first.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.data.own.columns import Column, Row, value_at
from forerun.data.own.flag_columns import BETWEEN
from forerun.data.own.format_parts import ALIASES, ORIGINS, PARTS, VALUES, Proposal
from forerun.data.own.label_ranks import LabelRank, can_be_label, is_named_label, label_rank
from forerun.data.own.tagged_lines import TAG_STARTS
from forerun.settings.schema import DataFormat

TWO_TEXTS: tuple[DataFormat, ...] = ("pairs", "prompt-completion", "translation")
"""Formats of a text and another one that belongs to it."""
ASKING = frozenset(["query", "question", "anchor", "prompt", "input", "source", "src", "instruction", "ask", "search"])
"""Words in names of columns that come before what belongs to them."""
LONG_CHARACTERS = 40
"""Mean length from which a column holds more than names."""
PROSE_WORDS = 3
"""Mean words from which a column holds more than names, however short."""
FEW = 20
"""Values below which it says nothing that none comes again."""
LABEL_CHARACTERS = 80
"""Longest mean of a label's text."""
MANY_FLAGS = 3
"""Columns of yes and no that are the labels of a text beside them; fewer may say other things of it."""
EVEN_SHARE = 0.9
"""Share of rows that must have a tag for each word."""


def comes_again(column: Column) -> bool:
    """Whether the values of a column repeat, as labels and origins do and texts do not."""
    return column.values >= FEW and column.distinct <= column.values // 2


def is_label(column: Column) -> bool:
    """Whether a column's values can be labels: numbers, lists, or short texts that come again."""
    if column.kind in ("number", "texts", "numbers"):
        return True
    is_short = column.kind == "text" and column.mean_length <= LABEL_CHARACTERS
    return is_short and (comes_again(column) or column.values < FEW)


def is_prose(column: Column) -> bool:
    """Whether a column holds texts, and neither names nor labels."""
    is_long = column.mean_words >= PROSE_WORDS or column.mean_length >= LONG_CHARACTERS
    return column.kind == "text" and is_long and not comes_again(column)


def is_text_of_digits(column: Column, columns: Mapping[str, Column]) -> bool:
    """Whether a column of numbers can be the text: no other column holds texts."""
    return column.kind == "number" and not any(c.kind == "text" and not comes_again(c) for c in columns.values())


def other_text(
    columns: Mapping[str, Column], by_part: Mapping[str, str], *, is_labelled: bool = False
) -> Column | None:
    """A column of texts that no part uses: longer ones, or beside a label any; the format may be another one."""
    text = columns[by_part["text"]]
    others = [c for c in columns.values() if c.kind == "text" and c.name not in by_part.values() and c.is_full]
    others = [c for c in others if not comes_again(c) and c.values > 2]
    shortest = max(text.mean_length, LONG_CHARACTERS)
    is_short_too = is_labelled and "pair" not in by_part
    return next((c for c in others if c.mean_length >= shortest or (is_short_too and _is_second(c))), None)


def _is_second(column: Column) -> bool:
    return column.mean_words >= PROSE_WORDS and column.name.lower() not in ORIGINS.split()


def with_pair(columns: Mapping[str, Column], proposal: Proposal) -> list[Proposal]:
    """Labelled texts with another text, if there is one, as their pair."""
    other = other_text(columns, proposal.fields, is_labelled=True)
    if other is None or "pair" in proposal.fields:
        return []
    fields = {"text": proposal.fields["text"], "pair": other.name, "label": proposal.fields["label"]}
    reason = f"{other.name} also holds texts."
    return [Proposal("labelled", fields, proposal.workload, False, reason, VALUES)]


def lists_beside(columns: Mapping[str, Column], proposal: Proposal) -> list[Proposal]:
    """The only column of lists that come again, beside a number that is a label by another name than `label`."""
    lists = [c for c in columns.values() if c.kind == "texts" and _has_classes(c)]
    label = columns.get(proposal.fields["label"])
    is_sure = label is None or label.kind != "number" or label.name.lower() == ALIASES["label"][0]
    if is_sure or len(lists) != 1:
        return []
    reason = f"{lists[0].name} holds lists, {lists[0].distinct} different ones."
    fields = {**proposal.fields, "label": lists[0].name}
    return [Proposal("labelled", fields, proposal.workload, False, reason, proposal.weight)]


def one_text_after_another(columns: Mapping[str, Column], first: str) -> list[Proposal]:
    """A text and another one, which may be the answer to it."""
    other = other_text(columns, {"text": first})
    if other is None:
        return []
    fields = {"prompt": first, "completion": other.name}
    reason = f"{other.name} could be the answer to {first}."
    return [Proposal("prompt-completion", fields, "causal-lm", False, reason, VALUES)]


def by_values(columns: Mapping[str, Column], formats: Sequence[DataFormat], workload: str | None) -> list[Proposal]:
    """Rows of whose columns no name is known."""
    labelled = labelled_by_values(columns) if "labelled" in formats else []
    texts = _only_text(columns, workload) if "text" in formats else []
    likely = [p for p in labelled if _is_likely(p, labelled, columns)]
    others = [p for p in labelled if p not in likely]
    return [
        *likely,
        *_chats(columns, formats),
        *texts[:1],
        *others,
        *_two_texts(columns, formats, workload),
        *texts[1:],
    ]


def _chats(columns: Mapping[str, Column], formats: Sequence[DataFormat]) -> list[Proposal]:
    """Columns of chats."""
    kinds: dict[str, tuple[DataFormat, str]] = {
        "messages": ("messages", "role and content"), "turns": ("conversations", "from and value"),
    }  # fmt: skip
    chats = [(column.name, *kinds[column.kind]) for column in columns.values() if column.kind in kinds]
    return [
        Proposal(form, {form: name}, PARTS[form].workloads[0], False, f"{name} holds lists of {keys}.", VALUES)
        for name, form, keys in chats
        if form in formats
    ]


def _two_texts(columns: Mapping[str, Column], formats: Sequence[DataFormat], workload: str | None) -> list[Proposal]:
    """Two columns of texts: what is asked and what belongs to it, by their names' words or else by their order."""
    texts = [column for column in columns.values() if is_prose(column) and column.is_full][:2]
    if len(texts) < 2:
        return []
    one, other = sorted((column.name for column in texts), key=lambda name: not _asks(name))
    return [
        Proposal(
            name, dict(zip(PARTS[name].required, (one, other), strict=True)), workload or PARTS[name].workloads[0],
            False, f"{one} and {other} hold texts, of which {other} could belong to {one}.", VALUES,
        )
        for name in TWO_TEXTS
        if name in formats
    ]  # fmt: skip


def _asks(name: str) -> bool:
    """Whether a column's name says that it asks or comes first."""
    return not ASKING.isdisjoint(re.split(r"[\W_]+", name.lower()))


def labels_beside(columns: Mapping[str, Column], text: str) -> list[Proposal]:
    """Labels of a text whose name is known, if they are the default; the others are offered where it is asked."""
    labelled = labelled_by_values(columns, text)
    return [p for p in labelled if _flags(p) not in range(2, MANY_FLAGS) and _is_likely(p, labelled, columns)]


def _flags(proposal: Proposal) -> int:
    return len(proposal.fields["label"].split(BETWEEN))


def labelled_by_values(columns: Mapping[str, Column], text: str | None = None) -> list[Proposal]:
    """Labelled texts under names that nobody knows: `text` or the longest text, and whatever comes again, or amounts.

    The likeliest label is the first, but for columns that say yes or no together.
    """
    texts = [c for c in columns.values() if c.kind == "text" and c.distinct > max(2, c.values // 2)]
    if text is None and not texts:
        return []
    text = text or max(texts, key=lambda c: c.mean_length).name
    others = [c for c in columns.values() if c.name not in (text, "split") and not c.are_parts and not c.are_dates]
    classes = [c for c in others if is_label(c) and _has_classes(c)]
    others = [c for c in others if can_be_label(c)] or others
    labels = [c for c in classes if c in others]
    amounts = [c for c in others if c.kind == "number" and not c.are_running and c not in labels]
    labels += [c for c in amounts if is_named_label(c.name) or (not labels and len(amounts) == 1 and c.values >= FEW)]
    flags = [c.name for c in columns.values() if c.are_flags]
    together = [
        Proposal(
            "labelled", {"text": text, "label": BETWEEN.join(flags)}, "sequence-classification", False,
            f"{text} has the longest texts, and {len(flags)} columns say yes or no.", VALUES,
        )
    ] if len(flags) > 1 else []  # fmt: skip
    return together + [
        Proposal(
            "labelled", {"text": text, "label": label.name}, "sequence-classification", False,
            f"{text} has the longest texts, and {label.name} has {label.distinct} different values.", VALUES,
        )
        for label in sorted(labels, key=lambda label: (label_rank(label), label.distinct))
    ]  # fmt: skip


def have_tag_each(rows: Sequence[Row], words: str, tags: str) -> bool:
    """Whether texts or lists in the column `tags` have a tag for each word of those in `words`, more than one a row."""
    sizes = [(_size(value_at(row, words)), _size(value_at(row, tags))) for row in rows]
    are_sentences = sum(size for size, _ in sizes) > len(sizes)
    return are_sentences and sum(one == other for one, other in sizes) >= EVEN_SHARE * len(sizes)


def _size(value: Any) -> int:
    words = value.split() if isinstance(value, str) else value
    return len(words) if isinstance(words, list | tuple) else 0


def _has_classes(column: Column) -> bool:
    return 2 <= column.distinct <= max(2, column.values // 2)


def _is_likely(proposal: Proposal, proposals: Sequence[Proposal], columns: Mapping[str, Column]) -> bool:
    """Whether a label is one by its name, is the only list, or nothing else beside the text is as likely to be it."""
    label = proposal.fields["label"]
    if BETWEEN in label:
        return True
    names = {name for p in proposals for name in p.fields["label"].split(BETWEEN)}
    lists = [name for name in names if columns[name].kind == "texts"]
    rank = label_rank(columns[label])
    if rank == LabelRank.NAMED or lists == [label]:
        return True
    return rank <= LabelRank.MANY and all(label_rank(columns[name]) > rank for name in names - {label})


def tagged_by_values(columns: Mapping[str, Column], rows: Sequence[Row]) -> list[Proposal]:
    """Sentences with a tag for each word, under names that nobody knows."""
    spaced = [column.name for column in columns.values() if column.kind in ("text", "texts") and column.is_full]
    tags = [name for name in spaced if are_tags([value_at(row, name) for row in rows])]
    pairs = [
        (words, each) for each in tags for words in spaced if words not in tags and have_tag_each(rows, words, each)
    ]
    return [
        Proposal(
            "tagged", {"words": words, "tags": each}, "token-classification", False,
            f"{each} has a tag for each word of {words}.", VALUES,
        )
        for words, each in pairs
    ]  # fmt: skip


def are_tags(values: Sequence[Any]) -> bool:
    """Whether all values are tags of words, `O` or `B-…` and their like, and some are not `O`."""
    words = [word for value in values for word in (value.split() if isinstance(value, str) else value or ())]
    starts = [word for word in words if isinstance(word, str) and word.startswith(TAG_STARTS)]
    return bool(starts) and len(starts) + sum(word == "O" for word in words) == len(words)


def _only_text(columns: Mapping[str, Column], workload: str | None) -> list[Proposal]:
    texts = [c for c in columns.values() if c.kind == "text" and not (comes_again(c) and c.mean_words < PROSE_WORDS)]
    texts = [c for c in texts if is_prose(c)] or texts
    return [
        Proposal("text", {"text": c.name}, workload or "causal-lm", False, f"{c.name} holds texts.", VALUES)
        for c in sorted(texts, key=lambda c: -c.mean_length)[:3]
    ]
