"""What of an inspection should worry somebody, and what to do about it: sentences, worst first."""

from collections.abc import Iterable, Mapping, Sequence

from forerun.data.own.inspection_record import DataFinding, Inspection, Weight
from forerun.data.own.tool_columns import REMEDY
from forerun.units import format_count

FEW_ROWS, RARE = 200, 10
UNBALANCED = 20.0
"""Times that the most frequent label outnumbers the rarest."""
MARKED = 0.2
"""Share of rows with markup from which it is the data's way, and no subject of a text."""
SHOWN = 5
"""Labels, or pairs of them, that are named; all are counted."""


def findings_of(
    i: Inspection,
    rows_of_labels: Mapping[str, int] | None,
    *,
    are_tags_unnamed: bool = False,
    tools: str = "",
    dated: str = "",
    day_first: str = "",
    longest: Sequence[int] = (),
) -> list[DataFinding]:
    """Findings, the gravest first; `rows_of_labels` counts the rows of every label, where rows have classes, and
    `tools` is a sentence on tools that are not read, `dated` a column of dates; `day_first`
    one whose dates do not begin with the year; `longest` are numbers of rows far longer than nearly all."""
    findings = [*([] if rows_of_labels is None else _labels(i, rows_of_labels)), *_leaks(i), *_contents(i)]
    if are_tags_unnamed:
        text = "tags are numbers without names: scored are single words, whose most frequent tag counts as outside."
        remedy = "For F1 of whole spans write names (O, B-PER, I-PER, …), or name a datasets folder, which has them."
        findings.append(_finding("warning", "tags without names", text, remedy))
    if tools:
        findings.append(_finding("warning", "tools not read", tools, REMEDY))
    if dated and not i.stated_parts:
        text = f"the column {dated!r} holds dates, and rows are drawn into parts without regard to them."
        remedy = f"To be judged by the latest rows, as a model meets them in use, set data.order_by: {dated}."
        findings.append(_finding("note", "dated", text, remedy))
    elif day_first and not i.stated_parts:
        text = f"the column {day_first!r} holds dates that do not begin with the year, by which rows cannot be ordered."
        remedy = f"To be judged by the latest rows, write them as 2024-01-31 and set data.order_by: {day_first}."
        findings.append(_finding("note", "day first", text, remedy))
    if longest:
        named = ", ".join(f"{number:,}" for number in longest[:SHOWN]) + (", …" if len(longest) > SHOWN else "")
        text = f"{format_count(len(longest), 'row')} (by number {named}) of up to {i.characters.at[100]:,} characters, "
        text += f"where 95 % of rows have at most {i.characters.at[95]:,}: all but the beginning is cut where rows are."
        findings.append(_finding("warning", "long rows", text, "See whether each is one row, or divide it."))
    order: dict[Weight, int] = {"stop": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.weight])


def _labels(i: Inspection, rows_of_labels: Mapping[str, int]) -> list[DataFinding]:
    findings = []
    if i.label_count < 2:
        text = f"all rows ({i.rows:,}) have the label {next(iter(rows_of_labels), 'none')!r}: nothing is to be learned."
        findings.append(_finding("stop", "one class", text, "Add rows of another class."))
    for part, labels in i.unseen_labels.items():
        are = f"{format_count(len(labels), 'label')} of {part} {'is' if len(labels) == 1 else 'are'}"
        text = f"{are} in no training row: {', '.join(labels[:SHOWN])}."
        findings.append(_finding("warning", "unseen labels", text, "They will be wrong: add rows, or merge labels."))
    counts = list(rows_of_labels.values())
    if len(counts) > 1 and max(counts) >= UNBALANCED * min(counts):
        text = f"the rarest label has {min(counts):,} rows, the most frequent {max(counts):,}."
        findings.append(_finding("warning", "unbalanced", text, "Judge by macro-F1 beside accuracy."))
    alike = _alike(rows_of_labels)
    texts = [f"the labels {one!r} and {other!r} differ only in capitals or blanks." for one, other in alike[:SHOWN]]
    if len(alike) > SHOWN:
        texts.append(f"{len(alike) - SHOWN:,} more pairs of labels differ only in capitals or blanks.")
    findings += [_finding("warning", "labels alike", text, "Write them alike if they are one.") for text in texts]
    rare = sum(count < RARE for count in counts)
    if rare:
        text = f"{format_count(rare, 'label')} {'has' if rare == 1 else 'have'} fewer than {RARE} rows."
        findings.append(_finding("warning", "rare labels", text, "Add rows, or merge labels."))
    if i.contradictions:
        occur = "occurs" if i.contradictions == 1 else "occur"
        text = f"{format_count(i.contradictions, 'text')} {occur} with different labels."
        findings.append(_finding("warning", "contradictions", text, "Decide on one, or allow several labels."))
    for sign in i.signs:
        remedy = "A model will learn that first: balance it, or remove it from the texts."
        findings.append(_finding("warning", "gives the label away", f"{sign}.", remedy))
    for column, share in i.telling_columns.items():
        text = f"the column {column!r} alone tells the label of {share:.0%} of rows. It is not trained on."
        remedy = "See whether the two agree as they should, and that no text holds it."
        findings.append(_finding("note", "column tells the label", text, remedy))
    return findings


def _alike(labels: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of labels that a person would take for one."""
    first: dict[str, str] = {}
    names = ((" ".join(label.casefold().split()), label) for label in labels)
    return [(first[key], label) for key, label in names if first.setdefault(key, label) != label]


def _leaks(i: Inspection) -> list[DataFinding]:
    findings = []
    judged = i.parts.get("val", 0) + i.parts.get("test", 0)
    if i.left_training:
        have = (
            "has a text that is judged on; it is" if i.left_training == 1 else "have texts that are judged on; they are"
        )
        text = f"{format_count(i.left_training, 'training row')} {have} left out of training."
        weight = "warning" if i.left_training > 0.01 * max(judged, 1) else "note"
        findings.append(_finding(weight, "leak", text, "Nothing to do."))
    if i.left_validation:
        are = "is in test; it is" if i.left_validation == 1 else "are in test; they are"
        text = f"{format_count(i.left_validation, 'validation row')} {are} left out of validation."
        findings.append(_finding("warning", "leak", text, "Nothing to do."))
    if i.near_leaks:
        are = "is" if i.near_leaks == 1 else "are"
        text = f"{format_count(i.near_leaks, 'judged row')} of the sample {are} nearly the same as one trained on."
        findings.append(_finding("warning", "near leak", text, "Set data.group_by to what they share."))
    for column, share in i.shared_values.items():
        if share >= 0.5 and column not in i.telling_columns:
            text = f"{share:.0%} of test rows have a value of {column!r} that is also trained on."
            remedy = f"If that is one thing (a task, an author), set data.group_by: {column}."
            findings.append(_finding("note", "shared groups", text, remedy))
    return findings


def _contents(i: Inspection) -> list[DataFinding]:
    findings = []
    if i.secrets:
        text = f"{format_count(i.secrets, 'row')} with what has the form of a secret (a key, a token)."
        findings.append(_finding("warning", "secrets", text, "A model can repeat them: replace them, and revoke them."))
    if i.emails:
        text = f"{format_count(i.emails, 'row')} with e-mail addresses."
        findings.append(_finding("note", "e-mail addresses", text, "A model can repeat them: replace them."))
    if i.turns > MARKED * i.sample:
        text = f"{i.turns:,} of {i.sample:,} sampled rows are texts in which several speak in turn. All is learned,"
        remedy = "For answers alone give chats: messages of role and content, one chat a row."
        findings.append(_finding("warning", "turns", f"{text} questions and marks too.", remedy))
    if i.html > MARKED * i.sample:
        text = f"{i.html:,} of {i.sample:,} sampled rows hold tags of HTML, which are read as they stand."
        findings.append(_finding("note", "html", text, "Take them out where they say nothing: they cost tokens."))
    if i.exact_duplicates:
        repeat = "repeats" if i.exact_duplicates == 1 else "repeat"
        text = f"{format_count(i.exact_duplicates, 'row')} {repeat} another ({i.exact_duplicates / i.rows:.1%})."
        weight = "warning" if i.exact_duplicates > 0.05 * i.rows else "note"
        findings.append(_finding(weight, "duplicates", text, "They count more in training; remove them if not meant."))
    if i.near_duplicates:
        text = f"{i.near_duplicates:,} of {i.sample:,} sampled rows are nearly the same as another."
        findings.append(_finding("note", "near duplicates", text, "Look whether they are meant."))
    if i.rows < FEW_ROWS:
        text = f"{format_count(i.rows, 'row')}: scores will have wide intervals."
        findings.append(_finding("warning", "few rows", text, "Take a pretrained model, and more rows if you can."))
    return findings


def _finding(weight: Weight, kind: str, text: str, remedy: str) -> DataFinding:
    return DataFinding(weight=weight, kind=kind, text=text[0].upper() + text[1:], remedy=remedy)
