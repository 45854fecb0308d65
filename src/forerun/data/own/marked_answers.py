"""Rows of which a column marks the right ones of several texts: a better answer of two, passages that answer a query.

PKU-SafeRLHF                                        MS MARCO
    {"prompt": "…", "response_0": "…",                  {"query": "…", "passages": {"is_selected": [0, 1],
     "response_1": "…", "better_response_id": 1}                                    "passage_text": ["…", "…"]}}

`data.fields: {prompt: prompt, chosen: response_0, rejected: response_1, better: better_response_id}` exchanges the two
answers where the column says that the second one is better. `{anchor: query, positive: passages.passage_text,
selected: passages.is_selected, negative: unselected}` puts the passages that are marked into the column of positives
and the others into a column `unselected`, for `listed_texts.py` to make rows of.
"""

from collections.abc import Iterable, Iterator, Mapping

from forerun.data.own.columns import YES, Column, Row, value_at
from forerun.data.own.format_parts import VALUES, Proposal
from forerun.data.own.repairs import Repairs

UNSELECTED = "unselected"
"""Column of the passages that are not marked."""
FIRSTS, SECONDS = ("0", "0.0", "a", "model_a", "response_0", "response_a"), (
    "1", "1.0", "b", "model_b", "response_1", "response_b",
)  # fmt: skip
"""Words for the first and the second of two answers."""
TWO_ANSWERS = (
    ("response_0", "response_1"), ("response_a", "response_b"), ("answer_0", "answer_1"), ("answer_a", "answer_b"),
    ("completion_a", "completion_b"), ("output_1", "output_2"),
)  # fmt: skip
BETTER = ("better_response_id", "better_response", "better", "winner", "preferred", "preference", "choice", "chosen")
SAFER = ("safer_response_id",)
"""Columns that mark an answer by another measure."""
ASKS = ("prompt", "question", "instruction", "query")


def with_marks(rows: Iterable[Row], fields: Mapping[str, str], source: str, repairs: Repairs) -> Iterator[Row]:
    """Rows whose answers stand in their columns as `better` or `selected` of `fields` mark them; others as they are.

    Raises:
        BadData: a mark names no answer, or no passage is marked, and `repairs` does not allow to leave the row out.
    """
    for number, row in enumerate(rows, start=1):
        where = f"{source}, row {number}"
        if "better" in fields and fields["better"] in row:
            marked = _better_first(row, fields, where, repairs)
        elif "selected" in fields and value_at(row, fields["selected"]) is not None:
            marked = _parted(row, fields, where, repairs)
        else:  # files to be answered have no marks
            marked = row
        if marked is not None:
            yield marked


def _better_first(row: Row, fields: Mapping[str, str], where: str, repairs: Repairs) -> Row | None:
    word = str(row[fields["better"]]).strip().lower()
    one, other = fields["chosen"], fields["rejected"]
    if word in FIRSTS:
        return row
    if word in SECONDS:
        return {**row, one: row.get(other), other: row.get(one)}
    rule = f"the column {fields['better']!r} (better) says which of two answers is better, 0 or 1; found {word!r}."
    repairs.allow("equal-answers", where, rule)
    return None


def _parted(row: Row, fields: Mapping[str, str], where: str, repairs: Repairs) -> Row | None:
    marks, texts = value_at(row, fields["selected"]), value_at(row, fields["positive"])
    are_lists = isinstance(marks, list) and isinstance(texts, list) and len(marks) == len(texts)
    flags = [str(mark).strip().lower() in YES for mark in marks] if are_lists else []
    if not any(flags):
        rule = (
            f"the column {fields['selected']!r} (selected) marks a text of {fields['positive']!r}; found "
            f"{'none marked' if are_lists else 'no list as long as that of the texts'}."
        )
        repairs.allow("empty-texts", where, rule)
        return None
    positives = [text for text, is_marked in zip(texts, flags, strict=True) if is_marked]
    others = [text for text, is_marked in zip(texts, flags, strict=True) if not is_marked]
    return {**row, fields["positive"]: positives, fields["negative"]: others}


def marked_by_names(columns: Mapping[str, Column]) -> list[Proposal]:
    """What rows are of which a column marks the right texts, told by names."""
    by_name = {column.name.lower(): column for column in columns.values()}
    ask = next((by_name[name].name for name in ASKS if name in by_name and by_name[name].kind == "text"), None)
    if ask is None:
        return []
    return [*_passages(by_name, ask), *_two_answers(by_name, ask)]


def _passages(by_name: Mapping[str, Column], ask: str) -> list[Proposal]:
    marks, texts = by_name.get("passages.is_selected"), by_name.get("passages.passage_text")
    if marks is None or texts is None or texts.kind != "texts":
        return []
    fields = {"anchor": ask, "positive": texts.name, "negative": UNSELECTED, "selected": marks.name}
    reason = f"{marks.name} marks those of {texts.name} that answer {ask}; the others are negatives."
    return [Proposal("triplets", fields, "embedding", False, reason, VALUES)]


def _two_answers(by_name: Mapping[str, Column], ask: str) -> list[Proposal]:
    names = next((pair for pair in TWO_ANSWERS if all(name in by_name for name in pair)), None)
    if names is None:
        return []
    one, other = (by_name[name].name for name in names)
    marks = [by_name[name] for name in (*BETTER, *SAFER) if name in by_name and _is_mark(by_name[name])]
    return [
        Proposal(
            "preference", {"prompt": ask, "chosen": one, "rejected": other, "better": mark.name}, "preference", False,
            f"{mark.name} says which of {one} and {other} is better.", VALUES,
        )
        for mark in marks
    ]  # fmt: skip


def _is_mark(column: Column) -> bool:
    return column.are_flags or (column.kind == "text" and column.distinct <= 4)
