"""What `forerun init` saw in somebody's data, for a terminal: tables of lengths, labels and findings."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.data.own.inspection_record import Inspection
from forerun.units import format_count

LABELS_LISTED = 12
BAR = 24
"""Columns of the longest bar."""
COLOURS = {"stop": "bold red", "warning": "yellow", "note": "dim"}


def inspection_tables(inspection: Inspection, title: str) -> RenderableType:
    """Tables of one inspection."""
    i = inspection
    parts = ", ".join(f"{count:,} {part}" for part, count in i.parts.items())
    head = Text(f"{title}: {format_count(i.rows, 'row')}; {parts}", style="bold")
    languages = ", ".join(f"{name} {count / i.sample:.0%}" for name, count in list(i.languages.items())[:5])
    how = "counted by the tokenizer" if i.are_tokens_counted else f"characters / {i.characters_per_token:g}"
    if not i.are_tokens_counted and i.tokens.mean > 1.05 * i.characters.mean / i.characters_per_token + 1:
        how += ", more of Chinese, Japanese and Korean"
    how += ", with those of the chat template" if i.has_template_tokens else ""
    lines = [
        Text(
            f"Language, by stop words, scripts and code's punctuation of {format_count(i.sample, 'row')}: {languages}"
        ),
        Text(
            f"Tokens are {how}. Exact duplicates {i.exact_duplicates:,}; near ones in the sample {i.near_duplicates:,}."
        ),
    ]
    tables = [_lengths(i), *([_labels(i)] if i.labels else []), *([_findings(i)] if i.findings else [])]
    return Group(head, *lines, *tables)


def _lengths(i: Inspection) -> Table:
    table = Table(title="Length of a row", title_justify="left", show_edge=False)
    table.add_column("percentile")
    for place in i.tokens.at:
        table.add_column(str(place), justify="right")
    table.add_column("mean", justify="right")
    for name, histogram in (("characters", i.characters), ("words", i.words), ("tokens", i.tokens)):
        table.add_row(name, *(f"{length:,}" for length in histogram.at.values()), f"{histogram.mean:,.1f}")
    return table


def _labels(i: Inspection) -> Table:
    more = f"; the {LABELS_LISTED} most frequent" if i.label_count > LABELS_LISTED else ""
    table = Table(
        title=f"{format_count(i.label_count, 'label')}{more}", title_justify="left", show_edge=False, show_header=False
    )
    largest = max(i.labels.values())
    for label, count in list(i.labels.items())[:LABELS_LISTED]:
        bar = "█" * max(1, round(BAR * count / largest))
        table.add_row(Text(label), f"{count:,}", f"{count / i.rows:.1%}", bar)
    return table


def _findings(i: Inspection) -> Table:
    table = Table(title="Findings", title_justify="left", show_edge=False, show_header=False)
    for finding in i.findings:
        table.add_row(Text(finding.weight, style=COLOURS[finding.weight]), Text(finding.text), Text(finding.remedy))
    return table
