"""Every kind of check, by the word that a claims file calls it."""

import typing
from collections.abc import Callable
from typing import Any

from forerun.audit import arithmetic, benchmark, evidence, hardware_claims, program, schedule, scores, sizes, speed
from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding

Rule = Callable[[Any, Context], Finding]
CHECKS: dict[type[Check], Rule] = {
    **arithmetic.CHECKS, **schedule.CHECKS, **sizes.CHECKS, **speed.CHECKS, **benchmark.CHECKS, **scores.CHECKS,
    **hardware_claims.CHECKS, **evidence.CHECKS, **program.CHECKS,
}  # fmt: skip


def kind_of(section: type[Check]) -> str:
    """The word for a kind of check."""
    return typing.get_args(section.model_fields["kind"].annotation)[0]


KINDS: dict[str, type[Check]] = {kind_of(section): section for section in CHECKS}


def describe_kinds() -> list[tuple[str, str, list[str]]]:
    """Kind, what it checks, and its fields; those that must be given end in a star."""
    return [
        (
            kind,
            " ".join((section.__doc__ or "").split()),
            [
                name + ("*" if field.is_required() else "")
                for name, field in section.model_fields.items() if name not in ("kind", "of")
            ],
        )
        for kind, section in KINDS.items()
    ]  # fmt: skip
