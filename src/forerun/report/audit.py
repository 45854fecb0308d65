"""An audit for the terminal: one block a claim, the worst first, or one line a document."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.audit.findings import FAILED, RULES, VERDICTS, AuditedClaim, AuditReport, Finding
from forerun.report.terminal import BAD, FAINT, GOOD

STYLES = {"consistent": GOOD, "unsupported": "yellow", "wrong": BAD, "impossible": f"bold {BAD}"}
QUOTE_LENGTH = 72
"""Most letters of a quote that the table shows."""


def audit_view(report: AuditReport, everything: bool = False) -> RenderableType:
    """Claims with verdict, right number, formula and source; consistent ones only when `everything` is wanted."""
    table = Table(title=report.document, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("claim", ratio=5)
    table.add_column("verdict", no_wrap=True)
    table.add_column("right", ratio=3)
    table.add_column("why", ratio=6)
    visible_claims = [claim for claim in report.claims if everything or _open(claim)]
    for claim in sorted(visible_claims, key=lambda claim: -VERDICTS.index(claim.verdict)):
        for number, finding in enumerate(_open(claim) or [claim.worst]):
            verdict = Text(finding.verdict, style=STYLES[finding.verdict])
            table.add_row("" if number else _quote(claim), verdict, finding.right, _why(finding))
        if claim.note:
            table.add_row("", "", "", Text(f"note: {' '.join(claim.note.split())}", style="italic"))
    return Group(table, summary_line(report))


def _open(claim: AuditedClaim) -> list[Finding]:
    """Findings that leave something to say, the worst first."""
    findings = [finding for finding in claim.findings if finding.said or finding.verdict != "consistent"]
    return sorted(findings, key=lambda finding: -VERDICTS.index(finding.verdict))


def _quote(claim: AuditedClaim) -> Text:
    quote = " ".join(claim.quote.split())
    quote = quote if len(quote) <= QUOTE_LENGTH else quote[: QUOTE_LENGTH - 1] + "…"
    place = claim.id + (f", line {claim.line}" if claim.line is not None else "")
    return Text.assemble((f"{place}\n", FAINT), quote)


def _why(finding: Finding) -> Text:
    remark = f"{finding.said}\n" if finding.said else ""
    return Text.assemble(remark, f"{finding.formula}\n", (f"{finding.rule}: {finding.source}", FAINT))


def summary_line(report: AuditReport) -> Text:
    """Claims by verdict."""
    parts = [(f"{count} {verdict}", STYLES[verdict]) for verdict, count in report.counts.items() if count]
    line = Text(f"{len(report.claims)} claims: ")
    for number, (text, style) in enumerate(parts):
        line.append(", " if number else "").append(text, style=style)
    return line


def audits_table(reports: Sequence[AuditReport]) -> Table:
    """Several documents, one line each."""
    table = Table("document", "claims", *VERDICTS, title="Audit by document", title_justify="left")
    for report in reports:
        counts = [Text(str(report.counts[v]), style=BAD if v in FAILED and report.counts[v] else "") for v in VERDICTS]
        table.add_row(report.document, str(len(report.claims)), *counts)
    return table


def kinds_table(descriptions: Sequence[tuple[str, str, list[str]]]) -> RenderableType:
    """Kinds of checks with their fields; a star marks one that must be given."""
    table = Table("kind", "checks", "fields (* must be given)", box=box.SIMPLE_HEAD, pad_edge=False)
    for kind, what, fields in descriptions:
        table.add_row(kind, what, ", ".join(fields))
    rules = Table("rule", "says", "source", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, rule in RULES.items():
        rules.add_row(name, rule.says, rule.source)
    return Group(table, rules)
