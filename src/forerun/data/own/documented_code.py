"""Code beside a text that describes it, as CodeSearchNet has them: what is found by what, or written from it."""

from collections.abc import Mapping, Sequence

from forerun.data.own.columns import Column, Row, value_at
from forerun.data.own.format_parts import PARTS, VALUES, Proposal
from forerun.settings.schema import DataFormat

DESCRIPTIONS = ("docstring", "func_documentation_string", "docstring_summary", "documentation", "doc")
CODES = ("code", "func_code_string", "function", "func", "whole_func_string", "original_string")
"""Names of columns; CodeSearchNet's on the Hugging Face hub and in CodeXGLUE among them."""
HOLDS = 0.5
"""Share of rows whose code holds its description from which that is said."""


def documented_code(
    columns: Mapping[str, Column], rows: Sequence[Row], formats: Sequence[DataFormat], workload: str | None
) -> list[Proposal]:
    """What code and its description could be, perhaps for one `workload`; the first is the default, none is certain."""
    by_name = {column.name.lower(): column.name for column in columns.values() if column.kind == "text"}
    about = next((by_name[name] for name in DESCRIPTIONS if name in by_name), None)
    code = next((by_name[name] for name in CODES if name in by_name), None)
    if about is None or code is None:
        return []
    share = sum(_holds(row, code, about) for row in rows) / len(rows)
    inside = f" In {share:.0%} of rows {code} holds {about} itself: take it out, or it is found by that alone."
    inside = inside if share >= HOLDS else ""
    meanings: tuple[tuple[DataFormat, dict[str, str], str], ...] = (
        ("pairs", {"anchor": about, "positive": code}, f"{code} can be found by {about}."),
        ("prompt-completion", {"prompt": about, "completion": code}, f"{code} can be written to {about}."),
        ("translation", {"source": code, "target": about}, f"{about} can be written about {code}."),
    )
    return [
        Proposal(format, fields, workload or PARTS[format].workloads[0], False, reason + inside, VALUES)
        for format, fields, reason in meanings
        if format in formats
    ]


def _holds(row: Row, code: str, about: str) -> bool:
    text, whole = value_at(row, about), value_at(row, code)
    return isinstance(text, str) and isinstance(whole, str) and bool(text.strip()) and text.strip() in whole
