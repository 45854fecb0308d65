"""Tables of which files are alike."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.recipes.code_detector.similarity.cohort import CohortReport
from forerun.recipes.code_detector.similarity.compare import Evidence
from forerun.report.tables import Cell, ResultTable

if TYPE_CHECKING:  # they import torch
    from forerun.recipes.code_detector.embedding.nearest import NearPair
    from forerun.recipes.code_detector.embedding.vectors import EmbeddingCard

SHOWN_EVIDENCE = 3
"""Stretches of a pair in the tables, the longest; JSON has all."""
USUAL_SHARE = 0.05
"""Share of unrelated pairs that are as close, from which on a pair is like them."""


def similar_tables(
    report: CohortReport, nearest: "Sequence[NearPair] | None", card: "EmbeddingCard | None" = None
) -> list[ResultTable]:
    """Pairs by what they share, and by the embedding that `card` describes where there is one."""
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
    if nearest is not None and card is not None:
        near: list[list[Cell]] = [
            [p.a, p.b, p.cosine, meaning(p.unrelated, len(card.unrelated)), _lines(p.evidence)] for p in nearest
        ]
        tables.append(
            ResultTable(
                title="Nearest by the embedding, which compares across languages too",
                note=f"{_origin(card)} As close: of pairs of unrelated validation files. Pieces: functions that are "
                f"each other's nearest, and closer than 99 % of unrelated pairs have any.",
                columns=["first", "second", "cosine", "as close", "pieces"],
                rows=near,
            )
        )
    return tables


def meaning(unrelated: float, steps: int) -> str:
    """Words for the share of unrelated pairs that are at least as close, known at so many steps of their rank."""
    if unrelated == 0:
        return f"fewer than 1 unrelated pair in {steps:,}"
    if unrelated < USUAL_SHARE:
        return f"1 unrelated pair in {round(1 / unrelated):,}"
    return f"{unrelated:.0%} of unrelated pairs: says nothing"


def _origin(card: "EmbeddingCard") -> str:
    if card.epochs == 0:
        return f"Of {card.data}, whose tasks taught it nothing: weighted names and structure as they are."
    return f"Trained on {card.tasks:,} tasks of {card.data}, {card.epochs} epochs."


def _lines(evidence: Sequence[Evidence]) -> str:
    longest = sorted(evidence, key=lambda each: -each.tokens)[:SHOWN_EVIDENCE]
    spans = [f"{e.a_first_line}-{e.a_last_line} = {e.b_first_line}-{e.b_last_line}" for e in longest]
    return ", ".join(spans) + (f", {len(evidence) - len(longest)} more" if len(evidence) > len(longest) else "")
