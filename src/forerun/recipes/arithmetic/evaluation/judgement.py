"""How a run of `arithmetic` is judged: figures, tables and curves from its findings, and signs early in the run.

Figures stand beside answerers that cannot add, and beside the answers of a calibrated model that has learned the
labels' distribution perfectly (`likeliest_label`): where those are often wrong, the noise itself, and not the training,
forbids right answers.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.recipes.arithmetic.data.contamination import highest_answer, likeliest_label
from forerun.recipes.arithmetic.data.rows import ArithmeticData
from forerun.recipes.arithmetic.evaluation.answers import Reply, exact_match, mean_digit_match, trivial_answers
from forerun.recipes.arithmetic.evaluation.findings import Findings
from forerun.recipes.arithmetic.evaluation.suspect_rows import precision_at, score_rows, separation
from forerun.recipes.arithmetic.evaluation.tables import all_tables, early_curve
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Precision, Settings
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

CRITERIA = (
    Criterion(name="adds the longest operands", quantity="exact_match_longest", comparison="above", bound=0.99),
    Criterion(name="adds operands of all lengths", quantity="exact_match", comparison="above", bound=0.98),
    Criterion(
        name="beats answerers that cannot add",
        quantity="exact_match",
        comparison="above",
        bound="best_trivial_exact_match",
        margin=0.05,
    ),
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.30),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.15),
)
"""Success criteria of `forerun run arithmetic` on clean rows; a contaminated run may fail the first three."""
PROBED_ROWS = 256
"""Training rows of each kind, clean and corrupt, whose loss is followed."""
EARLY_SHARE = 0.1
"""Share of the run whose signs are early ones."""
SCORES = ("loss", "gradient", "influence")


@dataclass
class EarlySigns:
    """Signs along the run, each from one forward pass over held-out questions and some training rows.

    Called between steps; it remembers what it found in this process.
    """

    data: ArithmeticData
    precision: Precision
    history: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        data = self.data
        clean = [n for n, row in enumerate(data.rows) if not row.is_corrupt][:PROBED_ROWS]
        corrupt = [n for n, row in enumerate(data.rows) if row.is_corrupt][:PROBED_ROWS]
        self._rows = {
            "clean": [data.samples[n] for n in clean], "corrupt": [data.samples[n] for n in corrupt],
        }  # fmt: skip
        self._held_out = data.trusted()

    @property
    def examples(self) -> int:
        """Samples scored each time."""
        return len(self._held_out) + sum(len(rows) for rows in self._rows.values())

    def __call__(self, step: TrainingStep, number: int) -> dict[str, float]:
        """Signs after optimizer step `number`."""
        pad = self.data.tokeniser.pad_id
        scored = score_rows(step.model, self._held_out, pad, precision=self.precision)
        signs = {
            "validation_exact_match": float(scored.is_reproduced.mean()),
            "right_answer_probability": float(np.exp(-scored.loss).mean()),
        }
        for kind, rows in self._rows.items():
            if rows:
                signs[f"{kind}_row_loss"] = float(
                    score_rows(step.model, rows, pad, precision=self.precision).loss.mean()
                )
        self.history.append((number, signs))
        return signs

    def by_share(self, total_steps: int) -> dict[str, float]:
        """The last signs within the first tenth of the run; empty where none were seen there."""
        early_signs = [signs for number, signs in self.history if number <= EARLY_SHARE * total_steps]
        return early_signs[-1] if early_signs else {}


def judgement_of(findings: Findings, data: ArithmeticData, early: EarlySigns, settings: Settings) -> Judgement:
    """Figures, tables and curves of a run."""
    trivial = trivial_answers(data.test, [row.question for row in data.rows])
    metrics = all_metrics(findings, data, settings, trivial)
    metrics |= {f"early.{name}": value for name, value in early.by_share(settings.total_steps(len(data.rows))).items()}
    tables = all_tables(findings, data, trivial, metrics)
    curves = [early_curve(early.history, data.contamination)] if early.history else []
    return Judgement(metrics, tables, curves, comparison_data_of(findings, data, early))


def all_metrics(
    findings: Findings, data: ArithmeticData, settings: Settings, trivial: dict[str, list[Reply]]
) -> dict[str, float]:
    """Flat figures for the measurement."""
    whole = exact_match(findings.test)
    low, high = whole.interval
    longest = [r for r in findings.test if r.question.cell[1] == data.options.max_digits]
    report = data.contamination
    metrics = {
        "exact_match": whole.value, "exact_match_low": low, "exact_match_high": high,
        "exact_match_longest": exact_match(longest).value, "digit_match": mean_digit_match(findings.test),
        "best_trivial_exact_match": max(exact_match(replies).value for replies in trivial.values()),
        "nominal_rate": report.nominal_rate, "effective_rate": report.effective_rate,
    }  # fmt: skip
    if not report.came_wrong:
        metrics["ideal_exact_match"] = ideal_exact_match(data, settings)
    if findings.beyond:
        metrics["exact_match_beyond"] = exact_match(findings.beyond).value
    if findings.triggered:
        target = str(settings.data.contamination.target)
        metrics["trigger_success"] = sum(r.integer == target for r in findings.triggered) / len(findings.triggered)
    return metrics | suspect_metrics(findings, data)


def suspect_metrics(findings: Findings, data: ArithmeticData) -> dict[str, float]:
    """Recall of rows, and how well each score ranks the corrupt ones."""
    corrupt = np.asarray([data.rows[number].is_corrupt for number in findings.scored])
    reproduced = findings.scores.is_reproduced
    metrics = {"contradicted_rows": 1 - float(reproduced.mean())}
    if not corrupt.all():
        metrics["recall_of_clean_rows"] = float(reproduced[~corrupt].mean())
    if corrupt.any():
        metrics["recall_of_corrupt_rows"] = float(reproduced[corrupt].mean())
        metrics["corrupt_rows_answered_rightly"] = float(findings.corrected_share or 0.0)
    for name in SCORES:
        area = separation(corrupt.tolist(), getattr(findings.scores, name))
        if area is not None:
            metrics[f"suspects.{name}.roc_auc"] = area
            order = findings.scores.ranked(name)
            metrics[f"suspects.{name}.precision"] = precision_at(corrupt.tolist(), order, int(corrupt.sum()))
    return metrics


def ideal_exact_match(data: ArithmeticData, settings: Settings) -> float:
    """Exact match of a calibrated model that decodes greedily and has learned exactly this noise."""
    noise, order = settings.data.contamination, data.options.answer
    rate, highest = data.contamination.effective_rate, highest_answer(data.rows)
    labels = [likeliest_label(q, noise, rate, is_reversed=order == "reversed", highest=highest) for q in data.test]
    return sum(each == q.answer for each, q in zip(labels, data.test, strict=True)) / len(data.test)


def comparison_data_of(findings: Findings, data: ArithmeticData, early: EarlySigns) -> dict[str, Any]:
    """Results that comparisons between runs need, as JSON."""
    corrupt = [data.rows[number].is_corrupt for number in findings.scored]
    return {
        "test": [[r.question.left, r.question.right, r.integer] for r in findings.test],
        "beyond": [[r.question.left, r.question.right, r.integer] for r in findings.beyond],
        "operation": data.options.operation,
        "early": [{"step": number, **signs} for number, signs in early.history],
        "suspects": {
            name: [[findings.scored[i], corrupt[i]] for i in findings.scores.ranked(name)[:100]] for name in SCORES
        },
    }
