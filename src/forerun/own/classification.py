"""Texts, or pairs of texts, to labels: one, several, or a number (`sequence-classification`).

Scores of labels are those of `evaluate/label_metrics.py`. Of one label a row the most probable is the answer; of
several each has a threshold that validation rows choose (`thresholds.py`). Numbers are learned as distances from the
training mean in standard deviations, and answered in their own unit.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import overload

import numpy as np

from forerun.data.own.row_kinds import LabelledRow
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import TokenData, TokenSample
from forerun.errors import BadData
from forerun.evaluate.label_metrics import Decision, LabelPredictions, figures, paired_gap, standard_error
from forerun.evaluate.text_baselines import answers_of, fit_baselines
from forerun.own.facts import TaskFacts
from forerun.own.label_tables import (
    calibration_table,
    confusion_table,
    label_table,
    length_table,
    mistake_table,
)
from forerun.own.number_scores import NUMBER_SCORES, judge_numbers, number_scores
from forerun.own.parts import OwnParts
from forerun.own.scoring import class_logits, held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, judging_score, named, strongest, watched
from forerun.own.thresholds import KeptDecision, decision_for
from forerun.own.tokens import encoded, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, label_entropy

LABEL_SCORES = {
    "macro_f1": True, "micro_f1": True, "mcc": True, "balanced_accuracy": True, "average_precision": True, "ece": False,
}  # fmt: skip
Z95 = 1.96
BASELINE_ROWS, BASELINE_BYTES = 200_000, 2**25
"""Most training rows, and bytes of them, that baselines are fitted to."""


def scores_of_labels(labels: str) -> dict[str, bool]:
    """Scores by which a task may be judged, and whether higher is better; the first is its own."""
    return dict(NUMBER_SCORES) if labels == "number" else dict(LABEL_SCORES)


class RowTexts(Sequence[str]):
    """Texts of rows, read when asked for; of pairs both, a line each."""

    def __init__(self, rows: Sequence[LabelledRow]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "RowTexts": ...
    def __getitem__(self, index: int | slice) -> "str | RowTexts":
        if isinstance(index, slice):
            return RowTexts(self.rows[index])
        row = self.rows[index]
        return row.text if row.pair is None else f"{row.text}\n{row.pair}"


class LabelRows:
    """Rows of one part as texts and targets."""

    def __init__(self, rows: Sequence[LabelledRow], lengths: np.ndarray, facts: TaskFacts, note: str = ""):
        self.texts = RowTexts(rows)
        self.targets = targets_of(rows, facts)
        """Zeros and ones (rows, labels), or numbers (rows,) in their own unit."""
        self.lengths = lengths
        """Tokens of each row."""
        self.note = note


def baseline_rows(rows: StoredRows, facts: TaskFacts) -> LabelRows:
    """The training rows, or every n-th of them, that baselines are fitted to; they are in memory while they are."""
    stride = max(1, math.ceil(len(rows) / BASELINE_ROWS), math.ceil(int(rows.size_bytes.sum()) / BASELINE_BYTES))
    part = rows[::stride]
    note = f"Baselines are fitted to {len(part):,} training rows, one in {stride}." if stride > 1 else ""
    return LabelRows(part, np.zeros(len(part), dtype=np.int64), facts, note)


def open_classification(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of labelled rows.

    Raises:
        BadData: fewer than two labels among the training rows.
    """
    rows = parts.split(settings.evaluation)
    texts = (text for row in parts.learning_rows for text in (row.text, row.pair) if text is not None)
    tokenizer, assumptions = tokenizer_of(settings, texts, rows=parts.learning_rows.identity, lengths_only=lengths_only)
    facts = _facts(settings, parts, tokenizer.pad_token_id)
    workload = workload_of_facts(facts, tokenizer)
    samples = {part: _samples(own, facts, tokenizer) for part, own in rows.items()}
    split = {part: LabelRows(rows[part], samples[part].id_lengths, facts) for part in ("validation", "test")}
    held_out = {part: held_out_data(settings, samples[part], facts.pad_id) for part in ("validation", "test")}
    thresholds, metric = KeptDecision(facts), settings.evaluation.metric

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(_scores(class_logits(step, held_out["validation"]), split["validation"], facts))

    def judge(step: TrainingStep) -> dict[str, np.ndarray]:
        names = ("validation", "test") if facts.label_kind == "several" else ("test",)
        return {part: class_logits(step, held_out[part]) for part in names}

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload,
        data=TokenData(settings, samples["train"], facts.pad_id),
        train_size=len(rows["train"]),
        watched_size=len(rows["validation"]),
        test_size=len(rows["test"]),
        final_examples=len(rows["test"]) + (len(rows["validation"]) if facts.label_kind == "several" else 0),
        evaluate=evaluate,
        judge=judge,
        baselines=lambda logits: _judge(logits, baseline_rows(rows["train"], facts), split, thresholds, metric),
        scores=scores_of_labels(facts.label_kind),
        assumptions=assumptions,
        trivial=_trivial(parts.train, facts),
        before=lambda step, folder: thresholds.open(folder),
        after=thresholds.copy,
    )


def targets_of(rows: Sequence[LabelledRow], facts: TaskFacts) -> np.ndarray:
    """Zeros and ones (rows, labels), or numbers (rows,)."""
    if facts.label_kind == "number":
        return np.asarray([row.number for row in rows], dtype=np.float64)
    places = {name: number for number, name in enumerate(facts.label_names)}
    matrix = np.zeros((len(rows), len(places)), dtype=np.int64)
    for number, row in enumerate(rows):
        matrix[number, [places[label] for label in row.labels]] = 1
    return matrix


def _facts(settings: Settings, parts: OwnParts, pad_id: int) -> TaskFacts:
    plain = {
        "workload": settings.workload, "format": parts.format, "fields": dict(parts.fields),
        "is_paired": parts.train[0].pair is not None, "sequence_length": settings.batch.sequence_length,
        "pad_id": pad_id, "label_kind": parts.layout.labels,
    }  # fmt: skip
    if parts.layout.labels == "number":
        values = np.asarray([row.number for row in parts.train], dtype=np.float64)
        scale = float(values.std()) or 1.0
        return TaskFacts(**plain, label_names=("number",), label_mean=float(values.mean()), label_scale=scale)
    learned = {label for row in parts.train for label in row.labels}
    if len(learned) < 2 and parts.layout.labels == "one":
        raise BadData(
            f"{settings.data.source}: classification needs at least two labels among the rows to train on; found "
            f"{', '.join(learned) or 'none'} in all {len(parts.train):,}. Give rows of another label, or name the "
            f"column of the labels in data.fields.label."
        )
    judged = {label for row in chain(parts.validation, parts.test) for label in row.labels}
    return TaskFacts(**plain, label_names=tuple(sorted(learned | judged)))


def _samples(rows: StoredRows, facts: TaskFacts, tokenizer: object) -> StoredSamples:
    def samples(_: object) -> Iterator[TokenSample]:
        texts = ((row.text, row.pair) for row in rows)
        inputs = encoded(tokenizer, texts, facts.sequence_length, are_pairs=facts.is_paired)
        for row, own in zip(rows, inputs, strict=True):
            types = own["token_type_ids"] if facts.is_paired else None
            yield TokenSample(np.asarray(own["input_ids"], dtype=np.int32), _target(row, facts), types)  # type: ignore[arg-type]

    return stored_samples(rows, tokenizer, {"task": facts.model_dump(mode="json")}, samples)[0][""]


def _target(row: LabelledRow, facts: TaskFacts) -> float | list[float]:
    """What the model learns of a row: its class, its number in standard deviations, or zeros and ones."""
    if facts.label_kind == "number":
        return (row.number - facts.label_mean) / facts.label_scale
    if facts.label_kind == "one":
        return _class(row, facts)
    return [float(name in row.labels) for name in facts.label_names]


def _class(row: LabelledRow, facts: TaskFacts) -> int:
    """Place of a row's only label among all."""
    place = bisect_left(facts.label_names, row.labels[0])
    assert facts.label_names[place] == row.labels[0]
    return place


def probabilities(logits: np.ndarray, facts: TaskFacts) -> np.ndarray:
    """Probabilities (rows, labels) of the model's outputs."""
    wide = logits.astype(np.float64)
    if facts.label_kind == "several":
        return 1 / (1 + np.exp(-wide))
    shifted = np.exp(wide - wide.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def numbers(logits: np.ndarray, facts: TaskFacts) -> np.ndarray:
    """Answers (rows,) in the unit of the labels."""
    return logits[:, 0].astype(np.float64) * facts.label_scale + facts.label_mean


def _predictions(logits: np.ndarray, targets: np.ndarray, facts: TaskFacts) -> LabelPredictions:
    return LabelPredictions(targets, probabilities(logits, facts), facts.label_kind == "several")


def _scores(logits: np.ndarray, rows: LabelRows, facts: TaskFacts) -> dict[str, float]:
    if facts.label_kind == "number":
        return number_scores(rows.targets, numbers(logits, facts))
    answers = _predictions(logits, rows.targets, facts)
    return figures(answers, decision_for(answers))


def _trivial(train: Sequence[LabelledRow], facts: TaskFacts) -> TrivialLoss | None:
    if facts.label_kind == "number":
        return TrivialLoss(1.0, "always answering with the mean of the training rows")
    if facts.label_kind == "several":
        return None
    return TrivialLoss(label_entropy(_class(row, facts) for row in train), "always answering with the labels' shares")


def _answers_of_baselines(
    train: LabelRows, split: Mapping[str, LabelRows], *, is_several: bool
) -> tuple[dict[str, LabelPredictions], dict[str, Decision]]:
    """Each baseline's answers to the test rows, and its decision, made as the model's."""
    others: dict[str, LabelPredictions] = {}
    decisions: dict[str, Decision] = {}
    for baseline in fit_baselines(train.texts, train.targets, is_multi_label=is_several):
        if baseline.name not in ("prior", "all-negative"):
            answers = {
                part: answers_of(baseline, split[part].texts, split[part].targets, is_multi_label=is_several)
                for part in (("validation", "test") if is_several else ("test",))
            }
            others[baseline.name] = answers["test"]
            decisions[baseline.name] = decision_for(answers.get("validation", answers["test"]))
    return others, decisions


def _judge(
    logits: Mapping[str, np.ndarray],
    train: LabelRows,
    split: Mapping[str, LabelRows],
    thresholds: KeptDecision,
    metric: str | None,
) -> Judgement:
    """Scores of the test rows beside every baseline, with intervals."""
    facts, test = thresholds.facts, split["test"]
    if facts.label_kind == "number":
        return judge_numbers(numbers(logits["test"], facts), train, test, metric)
    is_several = facts.label_kind == "several"
    answers = {part: _predictions(own, split[part].targets, facts) for part, own in logits.items()}
    here = answers["test"]
    decision = decision_for(answers.get("validation", here))
    thresholds.keep(decision)
    others, decisions = _answers_of_baselines(train, split, is_several=is_several)
    scores = {name: figures(own, decisions[name]) for name, own in others.items()}
    metrics, score = figures(here, decision), judging_score(LABEL_SCORES, metric)
    error = Z95 * standard_error(here, score, decision)
    best = strongest(score, scores, is_higher_better=True)
    gap, low, high = paired_gap(here, others[best], score, (decision, decisions[best]))
    metrics |= {**named(scores), f"{score}.low": metrics[score] - error}
    metrics |= {f"{score}.high": metrics[score] + error, f"{score}.gap.low": low, f"{score}.gap.high": high}
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in LABEL_SCORES)]]
    rows += [[name, *(own[each] for each in LABEL_SCORES)] for name, own in scores.items()]
    note = (
        f"{len(test.texts):,} test rows, {len(train.texts):,} to train on. {score} ± {error:.3f} (95 %, rows drawn "
        f"again); {gap:+.3f} ({low:+.3f} to {high:+.3f}) against {best}, the strongest baseline. {train.note}"
    ).strip()
    note += " Thresholds of all are chosen on the validation rows." if is_several else ""
    tables = [
        ResultTable(title="Test, beside its baselines", note=note, columns=["", *LABEL_SCORES], rows=rows),
        label_table(facts.label_names, here, decision),
        *([] if is_several else [confusion_table(facts.label_names, here, decision)]),
        calibration_table(here),
        length_table(here, decision, test.lengths),
        mistake_table(facts.label_names, test.texts, here, decision),
    ]
    return Judgement(metrics, tables, comparison_data={"probabilities": here.probabilities.round(6).tolist()})
