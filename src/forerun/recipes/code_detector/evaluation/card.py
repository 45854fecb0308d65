"""What must stand beside a detector's score before anybody acts on it: its card, made from held-out rows.

The card goes with an exported model (`detector.json`, `MODEL_CARD.md`) and into every served answer. Calibration and
thresholds come from validation, rates from test (`evaluate.decision`). A file with fewer tokens than 95 % of the
validation files gets no verdict: nothing is known about such files.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.evaluate.classification import Floats, Scored, bootstrap_auc, expected_calibration_error, roc_auc
from forerun.recipes.code_detector.data.corpus import CodeSample, Split
from forerun.recipes.code_detector.data.training_data import CodeDetectorData
from forerun.recipes.code_detector.evaluation.baselines import FORMATTING_COUNTS, formatting_counts, scored
from forerun.recipes.code_detector.evaluation.decision import (
    BUDGETS,
    BudgetPoint,
    budget_point,
    by_certainty,
    by_size,
    fit_calibration,
)
from forerun.recipes.code_detector.evaluation.scores import SplitScores
from forerun.recipes.code_detector.evaluation.unseen_people import unseen_people
from forerun.recipes.code_detector.options import options_of
from forerun.recipes.code_detector.service.detector_card import CARD, DetectorCard, Distribution, Reference, SliceRow
from forerun.report.tables import Cell, ResultCurve, ResultTable, Series
from forerun.settings.schema import Settings

MARKDOWN = "MODEL_CARD.md"
SERVED_BUDGET = 0.01
SIZE_LIMITS = (0, 32, 64, 96, 128, 192)
SIZE_BINS = (0, 64, 128, 192)
LEAST_SHARE = 0.05
HISTOGRAM_BINS, ATOM = 10, 0.05
SECOND_OPINION = (
    "A flag needs a second opinion, which reads the code without its formatting, to lie above its threshold too; it "
    "takes flags away and adds none."
)
STATEMENT = (
    "This score is no evidence against a person. It says how much a file resembles the AI-written files that this "
    "detector was trained on, by style as much as by substance.",
    "It was trained and judged on contest-like files. Another language, generator, formatter or course moves it, and "
    "then the stated rates do not hold.",
    "Whoever edits, translates or reformats code can move the score either way; a low score does not show that a "
    "person wrote the file.",
    "Use it, if at all, to decide whether to talk to a person, together with what else is known, and never alone.",
)


def make_card(scores: Mapping[Split, SplitScores], data: CodeDetectorData, settings: Settings) -> DetectorCard:
    """The card of a model with these scores on validation and test."""
    validation_raw = scored(data.samples["val"], scores["val"].probabilities)
    test_raw = scored(data.samples["test"], scores["test"].probabilities)
    calibration = fit_calibration(validation_raw)
    validation, test = (Scored(raw.labels, calibration(raw.scores), raw.groups) for raw in (validation_raw, test_raw))
    deciding, judged = (
        Scored(raw.labels, calibration(own.decisive), raw.groups)
        for own, raw in ((scores["val"], validation_raw), (scores["test"], test_raw))
    )
    second = _seconds(scores)
    points, alone = ([budget_point(deciding, judged, budget, pair) for budget in BUDGETS] for pair in (second, None))
    sizes = {split: np.asarray([len(ids) for ids in data.ids[split]]) for split in ("val", "test")}
    low, high = bootstrap_auc(test)
    options = options_of(settings)
    train = data.samples["train"]
    card = DetectorCard(
        name=settings.name,
        settings_hash=settings.hash,
        form=options.form,
        hold_out=options.hold_out,
        sequence_length=settings.batch.sequence_length,
        languages=sorted({sample.language for sample in train}),
        sources=sorted({sample.source for sample in train}),
        families=sorted({sample.family for sample in train if sample.is_ai}),
        training_files=len(train),
        calibration=calibration,
        calibration_error_before=expected_calibration_error(test.labels, test_raw.scores),
        calibration_error=expected_calibration_error(test.labels, test.scores),
        roc_auc=roc_auc(test.labels, test.scores),
        roc_auc_low=low,
        roc_auc_high=high,
        test_files=len(test.labels),
        least_tokens=int(np.quantile(sizes["val"], LEAST_SHARE)),
        served_budget=SERVED_BUDGET,
        points=points,
        by_certainty=by_certainty(test),
        by_size=by_size(test, sizes["test"], SIZE_LIMITS),
        slices=[],
        reference=_reference(validation, sizes["val"], data.samples["val"]),
        statement=[*STATEMENT, unseen_people().sentence()],
        decided_by_windows=scores["val"].least is not None,
        alone=[] if second is None else alone,
    )
    flagged = _flagged(card.served, judged.scores, None if second is None else second[1])
    rows = _slices(test, flagged, data.samples["test"], sizes["test"].tolist())
    return card.model_copy(update={"slices": list(rows)})


def _seconds(scores: Mapping[Split, SplitScores]) -> tuple[Floats, Floats] | None:
    """The second opinion's scores of validation and test; None where none was asked."""
    validation, test = scores["val"].second, scores["test"].second
    return None if validation is None or test is None else (validation, test)


def _flagged(point: BudgetPoint, scores: Floats, second: Floats | None) -> NDArray[np.bool_] | None:
    """Which files a point flags; None where it promises nothing."""
    if point.threshold is None:
        return None
    flagged = scores > point.threshold
    return flagged if second is None or point.second_threshold is None else flagged & (second > point.second_threshold)


def _reference(validation: Scored, sizes: np.ndarray, samples: Sequence[CodeSample]) -> Reference:
    inner = np.linspace(0, 1, HISTOGRAM_BINS + 1)[1:-1]
    token_edges, probability_edges = np.unique(np.quantile(sizes, inner)), np.linspace(0, 1, HISTOGRAM_BINS + 1)[1:-1]
    names = [sample.language for sample in samples]
    return Reference(
        token_edges=token_edges.tolist(),
        token_shares=shares(sizes, token_edges),
        probability_edges=probability_edges.tolist(),
        probability_shares=shares(validation.scores, probability_edges),
        languages={str(name): names.count(name) / len(names) for name in sorted(set(names))},
        features=_features([sample.code for sample in samples], inner),
    )


def _features(codes: Sequence[str], inner: np.ndarray) -> dict[str, Distribution]:
    """Distribution of each count of the formatting."""
    distributions = {}
    for name, values in zip(FORMATTING_COUNTS, np.asarray([formatting_counts(code) for code in codes]).T, strict=True):
        distributions[name] = distribution(values, inner)
    return distributions


def distribution(values: np.ndarray, ranks: np.ndarray) -> Distribution:
    """Bins between the quantiles of these ranks; a value that many have (no tabs, say) is a bin of its own."""
    edges = np.unique(np.quantile(values, ranks))
    # np.nextafter closes a bin right after the value, so that it holds nothing else.
    edges = np.unique([*edges, *(np.nextafter(e, np.inf) for e in edges if (values == e).mean() >= ATOM)])
    return Distribution(edges=edges.tolist(), shares=shares(values, edges))


def shares(values: np.ndarray, edges: np.ndarray) -> list[float]:
    """Share of the values in each bin between inner `edges`."""
    counts = np.bincount(np.searchsorted(edges, values, "right"), minlength=len(edges) + 1)
    return (counts / max(1, len(values))).tolist()


def _slices(
    test: Scored, flagged: NDArray[np.bool_] | None, samples: Sequence[CodeSample], sizes: Sequence[int]
) -> Iterator[SliceRow]:
    """Rows by language, length in tokens (cut at the sequence length), source and maker of the generator."""
    human = np.asarray([not sample.is_ai for sample in samples])
    parts: dict[str, np.ndarray] = {}
    for name in sorted({sample.language for sample in samples}):
        parts[f"language {name}"] = np.asarray([sample.language == name for sample in samples])
    for low, high in zip(SIZE_BINS, (*SIZE_BINS[1:], 10**9), strict=True):
        label = f"{low} to {high - 1} tokens" if high < 10**9 else f"{low} tokens and more"
        parts[label] = np.asarray([low <= size < high for size in sizes])
    for name in sorted({sample.source for sample in samples}):
        parts[f"source {name}"] = np.asarray([sample.source == name for sample in samples])
    for name in sorted({sample.family for sample in samples if sample.is_ai}):
        parts[f"written by {name}"] = human | np.asarray([sample.family == name for sample in samples])
    for name, mask in parts.items():
        if mask.any():
            yield _slice(name, test.where(mask), None if flagged is None else flagged[mask])


def _slice(name: str, part: Scored, flagged: NDArray[np.bool_] | None) -> SliceRow:
    positive = part.labels == 1
    both = 0 < positive.sum() < len(positive)
    return SliceRow(
        name=name,
        files=len(part.labels),
        ai_files=int(positive.sum()),
        roc_auc=roc_auc(part.labels, part.scores) if both else None,
        tpr=float(flagged[positive].mean()) if positive.any() and flagged is not None else None,
        fpr=float(flagged[~positive].mean()) if not positive.all() and flagged is not None else None,
    )


def card_tables(card: DetectorCard) -> list[ResultTable]:
    """The card as tables."""
    names = ("with the second opinion", "the detector alone") if card.alone else ("the detector alone",)
    points: list[list[Cell]] = [
        [f"{p.budget:.1%}", name, p.threshold, p.second_threshold, f"{p.validation_flagged} of "
         f"{p.validation_human_files}", p.tpr, p.tpr_low, p.tpr_high, p.fpr, p.fpr_low, p.fpr_high]
        for name, part in zip(names, (card.points, card.alone), strict=False) for p in part
    ]  # fmt: skip
    prevalences = list(card.points[0].ppv)
    right: list[list[Cell]] = [[f"{p.budget:.1%}", *(p.ppv[share] for share in prevalences)] for p in card.points]
    risk: list[list[Cell]] = [["certainty", p.limit, p.coverage, p.error, p.files] for p in card.by_certainty]
    risk += [["tokens", p.limit, p.coverage, p.error, p.files] for p in card.by_size]
    slices: list[list[Cell]] = [[s.name, s.files, s.ai_files, s.roc_auc, s.tpr, s.fpr] for s in card.slices]
    return [
        ResultTable(
            title="Thresholds by false-positive budget",
            note="With 95 % confidence no more than the budget of innocent validation files is flagged; a dash: too "
            "few human files to promise it. A long file is flagged where it and its windows all lie above. "
            + (f"{SECOND_OPINION} " if card.alone else "")
            + "Rates on test with exact 95 % intervals.",
            columns=[
                "budget",
                "flags",
                "threshold",
                "second threshold",
                "flagged on validation",
                "TPR",
                "low",
                "high",
                "FPR",
                "low",
                "high",
            ],  # fmt: skip
            rows=points,
        ),
        ResultTable(
            title="Of the flagged files, how many are AI-written",
            note="At the share of AI-written files in the heading, with the upper end of the measured FPR. "
            + " ".join(card.full_statement),
            columns=["budget", *(f"{float(share):.0%}" for share in prevalences)],
            rows=right,
        ),
        ResultTable(
            title="Leaving files alone: coverage and error",
            note=f"Files of fewer than {card.least_tokens} tokens get no verdict. Expected calibration error "
            f"{card.calibration_error_before:.3f} raw, {card.calibration_error:.3f} calibrated.",
            columns=["limit on", "at least", "coverage", "error", "files"],
            rows=risk,
        ),
        ResultTable(
            title="By language, length, source and generator",
            note=f"At a budget of {card.served.budget:.1%}. A generator's files stand beside all human ones.",
            columns=["part", "files", "AI", "AUC", "TPR", "FPR"],
            rows=slices,
        ),
    ]


def unseen_human_tables(card: DetectorCard) -> list[ResultTable]:
    """People's files of sources that it has not seen; no table where none was measured."""
    if not card.known_human:
        return []
    rows: list[list[Cell]] = [
        [
            r.label,
            r.language,
            r.files,
            r.flagged,
            r.flagged / r.files,
            r.low,
            r.high,
            r.promise(card.served.budget),
            r.flagged_alone,
        ]
        for r in card.known_human
    ]
    return [
        ResultTable(
            title="People's files of sources that it has not seen",
            note=f"The threshold promises {card.served.budget:.1%} on files like the validation files. 95 % intervals; "
            "broken: even their lower end is above that. Looked at before: while its design was chosen. Alone: "
            "flagged without the second opinion.",
            columns=["source", "language", "files", "flagged", "share", "low", "high", "promise", "alone"],
            rows=rows,
        )
    ]


def card_metrics(card: DetectorCard) -> dict[str, float]:
    """The card's figures by name, for a run's JSON; what could not be measured has none."""
    metrics: dict[str, float | None] = {"calibration_error": card.calibration_error}
    for point in card.points:
        name = f"budget_{100 * point.budget:g}_percent"
        rates = ("threshold", "second_threshold", "tpr", "fpr", "fpr_low", "fpr_high")
        metrics |= {f"{name}.{rate}": getattr(point, rate) for rate in rates}
        metrics |= {f"{name}.ppv_at_prevalence_{prevalence}": value for prevalence, value in point.ppv.items()}
    for point in card.alone:
        name = f"alone.budget_{100 * point.budget:g}_percent"
        metrics |= {f"{name}.{rate}": getattr(point, rate) for rate in ("threshold", "tpr", "fpr")}
    metrics |= {f"coverage_{point.coverage:.1f}.error": point.error for point in card.by_certainty}
    for part in card.slices:
        metrics |= {f"slice.{part.name}.{rate}": getattr(part, rate) for rate in ("roc_auc", "tpr", "fpr")}
    return {name: value for name, value in metrics.items() if value is not None}


def coverage_curve(card: DetectorCard) -> ResultCurve:
    """Error of the files that are judged when the least certain, or the smallest, are left alone."""
    series = [
        Series(name=name, x=[p.coverage for p in points], y=[p.error for p in points])
        for name, points in (("least certain left alone", card.by_certainty), ("smallest left alone", card.by_size))
        if points
    ]
    return ResultCurve(
        title="Coverage and risk", note="On test; a falling line says that leaving files alone buys fewer errors.",
        across="share of files judged", up="share of those judged wrongly", series=series,
    )  # fmt: skip


def write_card(card: DetectorCard, folder: Path) -> None:
    """`detector.json` and `MODEL_CARD.md` into `folder`."""
    (folder / CARD).write_text(card.model_dump_json(indent=2), encoding="utf-8")
    (folder / MARKDOWN).write_text("\n".join(_markdown(card)) + "\n", encoding="utf-8")


def _markdown(card: DetectorCard) -> Iterator[str]:
    yield f"# Model card of {card.name} ({card.settings_hash})"
    yield ""
    yield "Is this file written by a person or by a language model?"
    yield ""
    for sentence in card.full_statement:
        yield f"- {sentence}"
    yield ""
    yield (
        f"Trained on {card.training_files:,} {card.form} files ({', '.join(card.languages)}; sources "
        f"{', '.join(card.sources)}; generators of {', '.join(card.families)}). Left out of training: "
        f"{card.hold_out or 'nothing, so nothing is known here about an unseen source or generator'}. "
        f"AUC on {card.test_files:,} held-out files {card.roc_auc:.3f} ({card.roc_auc_low:.3f} to "
        f"{card.roc_auc_high:.3f} over groups)."
    )
    for table in [*card_tables(card), *unseen_human_tables(card)]:
        yield ""
        yield f"## {table.title}"
        yield ""
        yield table.note
        yield ""
        yield f"| {' | '.join(table.columns)} |"
        yield f"|{'---|' * len(table.columns)}"
        for row in table.rows:
            cells = ("–" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c) for c in row)
            yield f"| {' | '.join(cells)} |"
