"""How `text-classifier` is judged: probabilities of a part, figures beside the baselines, and the criteria.

Decisions (thresholds) are tuned on the part `threshold`, which nothing else uses; models are chosen on `selection` with
plain decisions; the test rows are scored at the end of a run, unless the run belongs to a search.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import nn

from forerun.data.labelled_text import LabelledText, Part
from forerun.evaluate.label_metrics import (
    Decision,
    LabelPredictions,
    figures,
    plain_decision,
    precision_by_label,
    standard_error,
    tune_decision,
)
from forerun.evaluate.text_baselines import answers_of, fit_baselines
from forerun.recipes.text_classifier.data import TextClassifierOptions, TextData
from forerun.recipes.text_classifier.opening import check_methods, check_table, joined_text
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Precision
from forerun.step.precision import POLICIES
from forerun.step.training_step import TrainingStep
from forerun.train.recovery import in_pieces
from forerun.verify.compare import Criterion

Probabilities = dict[Part, np.ndarray]
BASELINES_WITH_THRESHOLD = ("length", "tf-idf")
"""Baselines whose threshold is tuned as the model's is; the others have nothing to tune."""
Z95 = NormalDist().inv_cdf(0.975)
"""Standard errors on either side of a 95 % interval."""
TABLE_FIGURES = ("macro_f1", "micro_f1", "mcc", "balanced_accuracy", "average_precision", "ece")
CRITERIA = (
    Criterion(
        name="beats the majority", quantity="macro_f1", comparison="above", bound="majority.macro_f1", margin=0.1,
    ),
    Criterion(
        name="is not the all-negative answer", quantity="macro_f1", comparison="above", bound="all-negative.macro_f1",
        margin=0.1,
    ),
    Criterion(name="beats length alone", quantity="macro_f1", comparison="above", bound="length.macro_f1", margin=0.05),
    Criterion(name="beats the strongest baseline", quantity="macro_f1", comparison="above", bound="*.macro_f1"),
    Criterion(name="correlates with the labels", quantity="mcc", comparison="above", bound=0.3),
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.35),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.2),
)  # fmt: skip


def score_part(model: nn.Module, data: TextData, part: Part, precision: Precision) -> np.ndarray:
    """Probabilities (rows, labels) of a part on the model's device; the training mode is put back after."""
    device = next(model.parameters()).device
    was_training, probabilities = model.training, np.zeros((len(data.rows[part]), data.classes))
    model.eval()
    with torch.no_grad(), POLICIES[precision].autocast(device.type):
        for rows, batch in data.evaluation_batches(part):
            inputs = {key: value for key, value in batch.items() if key != "labels"}
            logits = torch.cat(in_pieces(lambda b: model(**{k: v.to(device) for k, v in b.items()}), inputs)).float()
            chances = logits.sigmoid() if data.corpus.is_multi_label else logits.softmax(dim=1)
            probabilities[rows] = chances.cpu().numpy()
    model.train(was_training)
    return probabilities


def answer_texts(step: TrainingStep, data: TextData, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Label and probability of each text; of several labels a text all that are likelier than not."""
    rows = tuple(LabelledText(text=text, pair=None, labels=(0,), part="test") for text in texts)
    question_data = replace(data, rows={**data.rows, "test": rows}, _encoded={}, _epochs={}, _samplers={})
    probabilities = score_part(step.model, question_data, "test", step.settings.precision)
    names = data.corpus.label_names
    if data.corpus.is_multi_label:
        return [
            {
                "labels": [names[n] for n in np.flatnonzero(row > 0.5)],
                "probabilities": [round(float(p), 4) for p in row],
            }
            for row in probabilities
        ]
    return [{"label": names[int(row.argmax())], "probability": round(float(row.max()), 4)} for row in probabilities]


def answers(data: TextData, part: Part, probabilities: np.ndarray) -> LabelPredictions:
    """Probabilities of a part beside its labels."""
    return LabelPredictions(data.targets(part), probabilities, data.corpus.is_multi_label)


def selection_figures(data: TextData, probabilities: np.ndarray) -> dict[str, float]:
    """Figures of the selection rows, by plain decisions."""
    plain_figures = figures(answers(data, "selection", probabilities), plain_decision(data.classes))
    return {f"selection_{name}": value for name, value in plain_figures.items()}


def judge_selection(probabilities: Probabilities, data: TextData, options: TextClassifierOptions) -> Judgement:
    """Score of a search trial on the selection rows, with its standard error."""
    here = answers(data, "selection", probabilities["selection"])
    plain = plain_decision(data.classes)
    metrics = selection_figures(data, probabilities["selection"])
    metrics["selection_standard_error"] = standard_error(here, options.metric, plain)
    note = f"{len(here.targets):,} selection rows; the test rows were not scored."
    rows: list[list[Cell]] = [["model", *(metrics[f"selection_{name}"] for name in TABLE_FIGURES)]]
    table = ResultTable(title="Selection", note=note, columns=["", *TABLE_FIGURES], rows=rows)
    comparison_data = {"probabilities": probabilities["selection"].round(6).tolist()}
    return Judgement(metrics, [table], comparison_data=comparison_data)


def judge_test(probabilities: Probabilities, data: TextData, options: TextClassifierOptions) -> Judgement:
    """Figures on the test rows beside every baseline, decisions tuned on the threshold rows."""
    decision = tune_decision(answers(data, "threshold", probabilities["threshold"]))
    here = answers(data, "test", probabilities["test"])
    metrics = figures(here, decision) | selection_figures(data, probabilities["selection"])
    error = metrics["test_standard_error"] = standard_error(here, options.metric, decision)
    value = metrics[options.metric]
    metrics |= {f"{options.metric}_low": value - Z95 * error, f"{options.metric}_high": value + Z95 * error}
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in TABLE_FIGURES)]]
    for name, baseline in baseline_answers(data, "test").items():
        baseline_figures = figures(*baseline)
        metrics |= {f"{name}.{figure}": value for figure, value in baseline_figures.items()}
        rows.append([name, *(baseline_figures[figure] for figure in TABLE_FIGURES)])
    note = (
        f"{len(here.targets):,} test rows, {len(data.rows['train']):,} to train on. Decisions were tuned on "
        f"{len(data.rows['threshold']):,} other rows. {options.metric} ± {Z95 * error:.3f} "
        f"(95 %, rows drawn again). {data.corpus.repeated} training rows were dropped as repeats."
    )
    tables = [
        ResultTable(title="Test, beside its baselines", note=note, columns=["", *TABLE_FIGURES], rows=rows),
        label_table(data, here, decision),
    ]
    checks = check_methods(data)
    comparison_data = {"probabilities": probabilities["test"].round(6).tolist(), "decision": list(decision.levels)}
    return Judgement(metrics, [*tables, check_table(checks)] if checks else tables, comparison_data=comparison_data)


def baseline_answers(data: TextData, part: Part) -> dict[str, tuple[LabelPredictions, Decision]]:
    """Predictions of every baseline on a part, each with its decision."""
    train, targets = [joined_text(row) for row in data.rows["train"]], data.targets("train")
    is_multi, answers_by_name = data.corpus.is_multi_label, {}
    for baseline in fit_baselines(train, targets, is_multi_label=is_multi):
        decision = plain_decision(data.classes)
        if baseline.name in BASELINES_WITH_THRESHOLD and part == "test":
            threshold_texts = [joined_text(row) for row in data.rows["threshold"]]
            decision = tune_decision(
                answers_of(baseline, threshold_texts, data.targets("threshold"), is_multi_label=is_multi)
            )
        texts = [joined_text(row) for row in data.rows[part]]
        answers_by_name[baseline.name] = (
            answers_of(baseline, texts, data.targets(part), is_multi_label=is_multi),
            decision,
        )
    return answers_by_name


def label_table(data: TextData, here: LabelPredictions, decision: Decision) -> ResultTable:
    """F1, average precision and threshold of each label."""
    labels, precisions = decision.labels(here), precision_by_label(here)
    rows: list[list[Cell]] = []
    for number, name in enumerate(data.corpus.label_names):
        true, predicted = here.targets[:, number], labels[:, number]
        hits, both = int((true * predicted).sum()), int(true.sum() + predicted.sum())
        score = 2 * hits / both if both else 0.0
        rows.append([name, int(true.sum()), score, precisions[number], decision.levels[number]])
    note = "Threshold: tuned, or one half where labels are weighed alike."
    return ResultTable(
        title="By label", note=note, columns=["label", "rows", "F1", "average precision", "threshold"], rows=rows
    )


def scored_parts(options: TextClassifierOptions) -> Sequence[Part]:
    """Parts that are scored at the end of a run."""
    return ("selection",) if options.judged_on == "selection" else ("selection", "threshold", "test")
