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
    contexts = contexts_of(file, None if forecaster is None else once_each(forecaster), measurer)
    claims = []
    for number, claim in enumerate(file.claims, start=1):
        on_progress(claim.id or str(number))
        claims.append(_audited(claim, str(number), contexts))
    return AuditReport(document=file.document, source=file.source, claims=claims)


def check_one(
    check: Mapping[str, Any], configuration: Mapping[str, Any] | None = None, forecaster: Forecaster | None = None
) -> Finding:
    """The finding of a single check, written as in a claims file, on one configuration.

    Raises:
        InvalidSettings: a field is wrong, or the configuration lacks what the check needs.
    """
    known = {} if configuration is None else {"here": dict(configuration)}
    content = {"document": "one check", "configurations": known, "claims": [{"quote": "", "checks": [dict(check)]}]}
    return audit(claims_from(content), forecaster).claims[0].findings[0]


def once_each(forecaster: Forecaster) -> Forecaster:
    """Forecasts that several claims ask for are made once."""
    asked: dict[tuple[str, str], Settings] = {}

    @cache
    def answer(settings_hash: str, gpu: str) -> Forecast:
        return forecaster(asked[settings_hash, gpu], gpu)

    def ask(settings: Settings, gpu: str) -> Forecast:
        asked[settings.hash, gpu] = settings
        return answer(settings.hash, gpu)

    return ask


def _audited(claim: Claim, number: str, contexts: dict[str | None, Context]) -> AuditedClaim:
    findings = [_checked(check, claim.id or number, contexts[check.of]) for check in claim.checks]
    verdict = VERDICTS[max(VERDICTS.index(found.verdict) for found in findings)]
    return AuditedClaim(
        id=claim.id or number, quote=claim.quote, line=claim.line, note=claim.note, verdict=verdict, findings=findings
    )


def _checked(check: Check, name: str, context: Context) -> Finding:
    kind = kind_of(type(check))
    try:
        found = CHECKS[type(check)](check, context)
    except ForerunError as error:
        raise type(error)(f"Claim {name}, check {kind}: {error}") from error
    except ValueError as error:
        raise InvalidSettings(f"Claim {name}, check {kind}: {error}.") from error
    except ZeroDivisionError as error:
        raise InvalidSettings(f"Claim {name}, check {kind}: a quantity that is divided by is 0.") from error
    return found.model_copy(update={"kind": kind})
