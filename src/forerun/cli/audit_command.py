"""`forerun audit`: hold what a document, or a run of ours, says of itself against arithmetic, physics and records."""

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import EXIT_CRITERION_FAILED, JsonOption, ledger_url, print_json
from forerun.cli.output import print_view, with_format
from forerun.current_work import work
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.audit.claims import ClaimsFile
    from forerun.audit.findings import AuditReport
    from forerun.records import Measurement

CLAIMS_NAMED = 6
"""Failed claims of a document that the last line names."""
AUDITS_SCHEMA = "forerun.audits/1"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="audit")(audit)


@with_format
def audit(
    claims: Annotated[
        list[str] | None, typer.Argument(metavar="CLAIMS", help="YAML files of claims, or origins: the five that ship.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", metavar="RUN", help="Audit what this run reports; an id, or `last`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show consistent claims too.")] = False,
    kinds: Annotated[bool, typer.Option("--kinds", help="List the kinds of checks and the rules.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the claims of a document about a training run. Exit code 4: a claim is wrong."""
    if kinds:
        _show_kinds(as_json)
        return
    if (from_run is None) == (not claims):
        raise InvalidSettings(
            "Give one or more files of claims, or --from-run RUN. `forerun audit --kinds` helps write one."
        )
    reports = _audit_all([_claims_of_run(from_run)] if from_run is not None else _files(claims or []))
    if as_json:
        print_json(_documents(reports))
    else:
        _show(reports, everything)
    if not all(report.passed for report in reports):
        typer.echo("\n".join(failed_claims(report) for report in reports if not report.passed), err=True)
        raise typer.Exit(EXIT_CRITERION_FAILED)


def failed_claims(report: "AuditReport") -> str:
    """One line on the claims of a document that failed."""
    from forerun.audit.findings import FAILED

    failed = [
        claim.id if claim.line is None else f"{claim.id}, line {claim.line}"
        for claim in report.claims if claim.verdict in FAILED
    ]  # fmt: skip
    more = f"; and {len(failed) - CLAIMS_NAMED} more" if len(failed) > CLAIMS_NAMED else ""
    names = "; ".join(failed[:CLAIMS_NAMED])
    return f"{report.document}: {len(failed)} of {len(report.claims)} claims are wrong or impossible: {names}{more}."


def _files(names: list[str]) -> "list[ClaimsFile]":
    from forerun.audit.claims import load_claims
    from forerun.audit.shipped_claims import claims_path, shipped_documents

    paths = [
        path for name in names for path in (shipped_documents().values() if name == "origins" else [claims_path(name)])
    ]
    return [load_claims(path) for path in paths]


def _claims_of_run(run_id: str) -> "ClaimsFile":
    from forerun.audit.from_run import claims_of_run
    from forerun.ledger.store import open_ledger
    from forerun.runs.registry import criteria_of
    from forerun.settings.load import settings_from

    with open_ledger(ledger_url()) as ledger:
        row = ledger.run(run_id)
        return claims_of_run(ledger, row.id, criteria_of(row.workload, settings_from(row.settings)))


def _audit_all(files: "list[ClaimsFile]") -> "list[AuditReport]":
    from forerun.api import find_device, forecast_settings
    from forerun.audit.check import audit as hold_against

    with work("checking claims") as say:
        return [
            hold_against(
                file, lambda settings, gpu: forecast_settings(settings, find_device(gpu)), _measurement_of,
                on_progress=lambda what: say(f"checking {what}"),
            )
            for file in files
        ]  # fmt: skip


def _measurement_of(run_id: str) -> "Measurement":
    from forerun.ledger.store import open_ledger

    with open_ledger(ledger_url()) as ledger:
        row = ledger.run(run_id)
        measurement = ledger.measurement(row.id)
    if measurement is None:
        raise InvalidSettings(f"Run {row.id} is {row.state} and has no measurement. Finish it with --resume {row.id}.")
    return measurement


def _documents(reports: "list[AuditReport]") -> dict[str, object]:
    from forerun.audit.findings import AUDIT_SCHEMA

    documents = [
        {"schema": AUDIT_SCHEMA, "passed": r.passed, "counts": r.counts, **r.model_dump(mode="json")} for r in reports
    ]
    return documents[0] if len(documents) == 1 else {"schema": AUDITS_SCHEMA, "audits": documents}


def _show(reports: "list[AuditReport]", everything: bool) -> None:

    from forerun.report.audit import audit_view, audits_table

    views = [audit_view(report, everything) for report in reports]
    print_view(*views, *([audits_table(reports)] if len(reports) > 1 else []))


def _show_kinds(as_json: bool) -> None:

    from forerun.audit.findings import RULES
    from forerun.audit.kinds import describe_kinds
    from forerun.report.audit import kinds_table

    if as_json:
        rows = [{"kind": kind, "checks": what, "fields": fields} for kind, what, fields in describe_kinds()]
        rules = [{"rule": name, **rule.model_dump()} for name, rule in RULES.items()]
        print_json({"schema": "forerun.audit-kinds/1", "kinds": rows, "rules": rules})
    else:
        print_view(kinds_table(describe_kinds()))
