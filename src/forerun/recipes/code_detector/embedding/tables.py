"""Tables of which files are alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.recipes.code_detector.similarity.cohort import CohortReport
from forerun.recipes.code_detector.similarity.compare import Evidence
from forerun.report.tables import Cell, ResultTable

if TYPE_CHECKING:  # it imports torch
    from forerun.recipes.code_detector.embedding.nearest import NearPair

SHOWN_EVIDENCE = 3
"""Stretches of a pair in the tables, the longest; JSON has all."""


def similar_tables(report: CohortReport, nearest: "Sequence[NearPair] | None") -> list[ResultTable]:
    """Pairs by what they share, and by the learned embedding where there is one."""
    shared: list[list[Cell]] = [
        [
            pair.comparison.a, pair.comparison.b, pair.comparison.words.score, pair.comparison.syntax.score,
            pair.standing, _lines([e for e in pair.comparison.evidence if e.tier == "syntax"]),
        ]
        for pair in report.best
    ]  # fmt: skip
    tables = [
        ResultTable(
            title="Most in common",
            note=f"{report.files:,} files, {report.pairs:,} pairs. {report.guarantee} shared words in a row cannot "
            f"escape. Standing: robust standard deviations above the median of all pairs ({report.median_cover:.3f}).",
            columns=["first", "second", "words", "syntax", "standing", "lines"],
            rows=shared,
        )
    ]
    if nearest is not None:
        near: list[list[Cell]] = [[p.a, p.b, p.cosine, p.unrelated, _lines(p.evidence)] for p in nearest]
        tables.append(
            ResultTable(
                title="Nearest by the trained embedding",
                note="Unrelated: share of pairs of unrelated validation files that are at least as close.",
                columns=["first", "second", "cosine", "unrelated", "pieces"],
                rows=near,
            )
        )
    return tables


def _lines(evidence: Sequence[Evidence]) -> str:
    longest = sorted(evidence, key=lambda each: -each.tokens)[:SHOWN_EVIDENCE]
    spans = [f"{e.a_first_line}-{e.a_last_line} = {e.b_first_line}-{e.b_last_line}" for e in longest]
    return ", ".join(spans) + (f", {len(evidence) - len(longest)} more" if len(evidence) > len(longest) else "")
