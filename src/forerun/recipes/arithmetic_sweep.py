"""Runs of `arithmetic` beside each other: dose and response for each kind of noise."""

from collections.abc import Mapping, Sequence

from forerun.recipes.swept import SweptRun
from forerun.report.tables import ResultCurve, ResultTable

VARIANTS: Mapping[str, tuple[str, ...]] = {}


def comparison(runs: Sequence[SweptRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """Tables and curves over the finished runs."""
    return [], []
