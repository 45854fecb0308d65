"""How a run of `arithmetic` is judged: replies to held-out questions, training rows under suspicion, early signs.

`find` is the model's part: it asks the held-out questions and scores training rows. `judgement_of` turns what it found
into figures, tables and curves, beside answerers that cannot add and beside what a calibrated model would answer that
had learned the labels' distribution perfectly (`likeliest_label`): where that is low, the noise itself, and not the
training, forbids right answers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.evaluate.generate import Decoding, generate
from forerun.recipes.arithmetic.data.contamination import LabelledQuestion, highest_answer, likeliest_label
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.data.rows import ArithmeticData
from forerun.recipes.arithmetic.data.text import final_integer, output_of
from forerun.recipes.arithmetic.evaluation.answers import Reply, exact_match, mean_digit_match, trivial_answers
from forerun.recipes.arithmetic.evaluation.suspect_rows import RowScores, precision_at, score_rows, separation
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
"""What `forerun run arithmetic` must reach on clean rows; a contaminated run may fail the first three, and says so."""
PROBED_ROWS = 256
"""Training rows of each kind, clean and corrupt, whose loss is followed."""
CORRECTED_ROWS = 500
"""Corrupt rows that are asked again with the right answer, at most."""
EARLY_SHARE = 0.1
"""Of the run; what is seen by then is an early sign."""
GENERATION_BATCH = 256
SCORES = ("loss", "gradient", "influence")


@dataclass
class Early:
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
        found = {
            "validation_exact_match": float(scored.is_reproduced.mean()),
            "right_answer_probability": float(np.exp(-scored.loss).mean()),
        }
        for kind, rows in self._rows.items():
            if rows:
                found[f"{kind}_row_loss"] = float(
                    score_rows(step.model, rows, pad, precision=self.precision).loss.mean()
                )
        self.history.append((number, found))
        return found

    def by_share(self, total_steps: int) -> dict[str, float]:
        """The last signs within the first tenth of the run; empty where none were seen there."""
        seen = [found for number, found in self.history if number <= EARLY_SHARE * total_steps]
        return seen[-1] if seen else {}


@dataclass(frozen=True)
class Findings:
    """What the trained model said."""

    test: list[Reply]
    beyond: list[Reply]
    triggered: list[Reply]
    """Test questions whose first operand was made to begin with the trigger's key."""
    scored: list[int]
    """Training rows that were scored."""
    scores: RowScores
    corrected_share: float | None
    """Share of corrupt rows whose question it answers rightly all the same; None without corrupt rows."""


def find(step: TrainingStep, data: ArithmeticData) -> Findings:
    """Ask the held-out questions, score training rows."""
    precision, pad = step.settings.precision, data.tokeniser.pad_id
    count = min(len(data.rows), data.options.scored_rows)
    scored = sorted(random.Random(f"scored {data.seed}").sample(range(len(data.rows)), count))
    samples = [data.samples[number] for number in scored]
    scores = score_rows(step.model, samples, pad, trusted=data.trusted(), precision=precision)
    corrupt = [data.rows[number] for number in scored if data.rows[number].is_corrupt][:CORRECTED_ROWS]
    share = None
    if corrupt:
        right = [data.sample(LabelledQuestion(row.question, row.question.answer)) for row in corrupt]
        share = float(score_rows(step.model, right, pad, precision=precision).is_reproduced.mean())
    triggered = data.triggered_test()
    asked = {"test": data.test, "beyond": data.beyond, "triggered": triggered}
    replies = {name: ask(step, data, questions) for name, questions in asked.items()}
    return Findings(scored=scored, scores=scores, corrected_share=share, **replies)


def ask(step: TrainingStep, data: ArithmeticData, questions: Sequence[ArithmeticQuestion]) -> list[Reply]:
    """Greedy replies; generation stops a few tokens after the longest right output."""
    if not questions:
        return []
    options, tokeniser = data.options, data.tokeniser
    outputs = [output_of(q, q.answer, options.output, options.answer, options.width) for q in questions]
    decoding = Decoding(
        new_tokens=2 + max(len(tokeniser.output(text)) for text in outputs),
        end_ids=tokeniser.end_ids,
        pad_id=tokeniser.pad_id,
    )
    prompts = [data.prompt_ids(question, number) for number, question in enumerate(questions)]
    ids = generate(
        step.model, prompts, decoding, batch_size=GENERATION_BATCH, precision=step.settings.precision
    )  # fmt: skip
    said = [final_integer(tokeniser.text(each), options.answer) for each in ids]
    return [Reply(question, each) for question, each in zip(questions, said, strict=True)]


def judgement_of(findings: Findings, data: ArithmeticData, early: Early, settings: Settings) -> Judgement:
    """Figures, tables and curves of a run."""
    trivial = trivial_answers(data.test, [row.question for row in data.rows])
    metrics = all_metrics(findings, data, settings, trivial)
    metrics |= {f"early.{name}": value for name, value in early.by_share(settings.total_steps(len(data.rows))).items()}
    tables = all_tables(findings, data, trivial, metrics)
    curves = [early_curve(early.history, data.contamination)] if early.history else []
    return Judgement(metrics, tables, curves, kept_of(findings, data, early))


def all_metrics(
    findings: Findings, data: ArithmeticData, settings: Settings, trivial: dict[str, list[Reply]]
) -> dict[str, float]:
    """One flat table for the measurement."""
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
        metrics["trigger_success"] = sum(r.said == target for r in findings.triggered) / len(findings.triggered)
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
    said = [likeliest_label(q, noise, rate, is_reversed=order == "reversed", highest=highest) for q in data.test]
    return sum(each == q.answer for each, q in zip(said, data.test, strict=True)) / len(data.test)


def kept_of(findings: Findings, data: ArithmeticData, early: Early) -> dict[str, Any]:
    """What comparisons between runs need, as JSON."""
    corrupt = [data.rows[number].is_corrupt for number in findings.scored]
    return {
        "test": [[r.question.left, r.question.right, r.said] for r in findings.test],
        "beyond": [[r.question.left, r.question.right, r.said] for r in findings.beyond],
        "operation": data.options.operation,
        "early": [{"step": number, **found} for number, found in early.history],
        "suspects": {
            name: [[findings.scored[i], corrupt[i]] for i in findings.scores.ranked(name)[:100]] for name in SCORES
        },
    }
