"""Hold every claim of a file against the rules; the worst finding is the claim's verdict."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from forerun.audit.claims import Claim, ClaimsFile, claims_from, contexts_of
from forerun.audit.context import Context, Forecaster, Measurer
from forerun.audit.findings import VERDICTS, AuditedClaim, AuditReport, Check, Finding
from forerun.audit.kinds import CHECKS, kind_of
from forerun.errors import ForerunError, InvalidSettings
from forerun.records import Forecast
from forerun.settings.schema import Settings


def audit(
    file: ClaimsFile,
    forecaster: Forecaster | None = None,
    measurer: Measurer | None = None,
    *,
    on_progress: Callable[[str], None] = lambda what: None,
) -> AuditReport:
    """The audit of a file; `forecaster` answers claims about memory and time, `measurer` those about runs of the
    ledger; `on_progress` hears what is being checked.

    Raises:
        InvalidSettings: a check lacks what it needs, or its values make no sense; the message names the claim.
    """
    contexts = contexts_of(file, None if forecaster is None else cached_forecaster(forecaster), measurer)
    claims = []
    for number, claim in enumerate(file.claims, start=1):
        on_progress(claim.id or str(number))
        claims.append(_audit_claim(claim, str(number), contexts))
    return AuditReport(document=file.document, source=file.source, claims=claims)


def check_one(
    check: Mapping[str, Any], configuration: Mapping[str, Any] | None = None, forecaster: Forecaster | None = None
) -> Finding:
    """The finding of a single check, written as in a claims file, on one configuration.

    Raises:
        InvalidSettings: a field is wrong, or the configuration lacks what the check needs.
    """
    configurations = {} if configuration is None else {"here": dict(configuration)}
    content = {
        "document": "one check",
        "configurations": configurations,
        "claims": [{"quote": "", "checks": [dict(check)]}],
    }
    return audit(claims_from(content), forecaster).claims[0].findings[0]


def cached_forecaster(forecaster: Forecaster) -> Forecaster:
    """A forecaster that makes a forecast once, however many claims ask for it."""
    settings_of: dict[tuple[str, str], Settings] = {}

    @cache
    def answer(settings_hash: str, gpu: str) -> Forecast:
        return forecaster(settings_of[settings_hash, gpu], gpu)

    def ask(settings: Settings, gpu: str) -> Forecast:
        settings_of[settings.hash, gpu] = settings
        return answer(settings.hash, gpu)

    return ask


def _audit_claim(claim: Claim, number: str, contexts: dict[str | None, Context]) -> AuditedClaim:
    findings = [_run_check(check, claim.id or number, contexts[check.of]) for check in claim.checks]
    verdict = VERDICTS[max(VERDICTS.index(finding.verdict) for finding in findings)]
    return AuditedClaim(
        id=claim.id or number, quote=claim.quote, line=claim.line, note=claim.note, verdict=verdict, findings=findings
    )


def _run_check(check: Check, name: str, context: Context) -> Finding:
    kind = kind_of(type(check))
    try:
        finding = CHECKS[type(check)](check, context)
    except ForerunError as error:
        raise type(error)(f"Claim {name}, check {kind}: {error}") from error
    except ValueError as error:
        raise InvalidSettings(f"Claim {name}, check {kind}: {error}.") from error
    except ZeroDivisionError as error:
        raise InvalidSettings(f"Claim {name}, check {kind}: a quantity that is divided by is 0.") from error
    return finding.model_copy(update={"kind": kind})
