"""Is this code written by a person or by a language model? Trained and judged on real files in Python, Java and C++.

    forerun run code-detector              forecast, train, judge beside the baselines, verify
    forerun run code-detector --set recipe.form=normalised                trained on code without its formatting
    forerun run code-detector --set recipe.hold_out=source:codeaid_63     judged on a source that it has not seen
    forerun sweep code-detector                                           these and unseen generators side by side
    forerun forecast code-detector-full --gpu a100-40gb                   CodeBERT, 128 x 2

A small encoder of code tokens learns from scratch by classification and supervised contrast
(`workload.py`) on the Apache-2.0 rows of the SemEval-2026 Task 13 trial set that ship with the package
(`data/ATTRIBUTION.md`). Splits are disjoint by group. Language, source and generator only slice the results.
Forecast and measured figures, with their dates: `README.md` beside this file.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from forerun.evaluate.classification import ClassificationReport, Scored, auc_difference, report, roc_auc
from forerun.ledger.store import Ledger
from forerun.recipes.code_detector.comparison import comparison
from forerun.recipes.code_detector.data.corpus import CodeCorpus, Split, embedded
from forerun.recipes.code_detector.data.tokens import CodeTokeniser
from forerun.recipes.code_detector.data.training_data import FROM_SCRATCH, CodeDetectorData, open_data
from forerun.recipes.code_detector.evaluation.baselines import (
    BaselineResult,
    labels_of,
    run_baselines,
    scored,
    slices_of,
)
from forerun.recipes.code_detector.evaluation.card import (
    card_metrics,
    card_tables,
    coverage_curve,
    make_card,
    write_card,
)
from forerun.recipes.code_detector.evaluation.scores import (
    CRITERIA,
    SplitScores,
    all_metrics,
    baseline_forms,
    criteria_for,
    score_split,
    task_pair_auc,
    with_windows,
)
from forerun.recipes.code_detector.evaluation.second_opinion import SecondOpinion, fit_second_opinion
from forerun.recipes.code_detector.evaluation.unseen import unseen_table
from forerun.recipes.code_detector.onnx_export import write_onnx
from forerun.recipes.code_detector.options import VARIANTS, options_of, part_of
from forerun.recipes.code_detector.workload import SHIPPED_WEIGHTS, CodeDetectorWorkload
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Experiment, Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch
from forerun.train.alive import TrivialLoss, label_entropy

SETTINGS = Settings.model_validate(
    {
        "name": "code-detector",
        "workload": "code-detector",
        "model": {"name": "code-encoder"},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01},
        "batch": {"micro_batch_size": 64, "sequence_length": 256, "padding": "bucketed"},
        "schedule": {"epochs": 5, "warmup_steps": 56, "decay": "linear"},
        "checkpoints": {"every_steps": 100, "keep_last": 2},
        "evaluation": {"every_epochs": 1, "examples": 1},
    }
)
__all__ = ["CRITERIA", "SETTINGS", "VARIANTS", "comparison", "criteria_for", "load_experiment", "related_tables"]
Scores = dict[Split, SplitScores]
COLUMNS = ["model", "code", "AUC", "AP", "acc", "F1", "TPR1", "FPR1", "TPR5", "FPR5"]


@dataclass(frozen=True)
class DetectorTrainingData:
    """The training split as the loop wants it."""

    data: CodeDetectorData

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Length-bucketed, group-aware batches."""
        return [[batch.tolist() for batch in step] for step in self.data.sampler.epoch(epoch)]

    def collate(self, indices: Sequence[int]) -> Batch:
        """One micro-batch as CPU tensors."""
        return self.data.collate(np.asarray(indices, dtype=np.int64))

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens without and with padding."""
        shape = self.data.sampler.shape(np.asarray(indices, dtype=np.int64))
        return sum(self.data.sampler.lengths[i] for i in indices), shape.size * shape.length


def load_experiment(settings: Settings, corpus: CodeCorpus | None = None, *, lengths_only: bool = False) -> Experiment:
    """Load, split and tokenise the data; fill the sizes into the settings. A forecast needs lengths only."""
    start = time.perf_counter()
    corpus = part_of(embedded() if corpus is None else corpus, options_of(settings))
    data = open_data(settings, corpus, lengths_only=lengths_only)
    plan = data.plan()
    if settings.model.name != FROM_SCRATCH and isinstance(data.tokeniser, CodeTokeniser):
        assumption = f"tokens are those of the recipe's own tokeniser; {settings.model.name}'s is not here."
        plan = replace(plan, assumptions=(*plan.assumptions, assumption))
    validation, test = (len(data.samples[split]) for split in ("val", "test"))
    if lengths_only and settings.evaluation.examples > validation:  # a forecast for more data than there is here
        validation, test = settings.evaluation.examples, settings.evaluation.examples
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.samples["train"])}),
        "evaluation": settings.evaluation.model_copy(update={"examples": validation}),
    }

    def evaluate(step: TrainingStep, number: int) -> dict[str, float]:
        scores = score_split(step.model, data, "val", precision=settings.precision)
        return {"validation_roc_auc": roc_auc(labels_of(data.samples["val"]), scores.probabilities)}

    return Experiment(
        settings=settings.model_copy(update=sizes),
        workload=CodeDetectorWorkload(settings),
        data=DetectorTrainingData(data),
        plan=plan,
        load_seconds=time.perf_counter() - start,
        final_examples=validation + test + sum(len(each) for files in data.windows.values() for each in files),
        evaluate=evaluate,
        judge=lambda step: judge(step, data),
        baselines=lambda scores: with_baselines(
            with_second_opinion(scores, data, second_opinion(data, settings)),
            data,
            run_baselines(corpus, baseline_forms(settings)),
            settings,
        ),
        write_card=lambda scores, folder: write_quality(scores, data, settings, folder),
        criteria=criteria_for(settings),
        save_assets=data.save_tokeniser,
        write_onnx=lambda step, folder: write_onnx(step.model, data, folder),
        trivial=TrivialLoss(
            label_entropy((int(s.is_ai) for s in data.samples["train"]), SHIPPED_WEIGHTS.label_smoothing),
            "always answering with the share of each kind of author",
            part="classification_loss",
        ),
    )


def judge(step: TrainingStep, data: CodeDetectorData) -> Scores:
    """Scores of validation and test, the only thing that needs the model."""
    precision = step.settings.precision
    splits: tuple[Split, ...] = ("val", "test")
    scores = {split: score_split(step.model, data, split, precision=precision) for split in splits}
    return {split: with_windows(scores[split], step.model, data, split, precision) for split in splits}


def second_opinion(data: CodeDetectorData, settings: Settings) -> SecondOpinion | None:
    """The reader without formatting that a flag needs; None for a detector that reads no formatting itself."""
    return fit_second_opinion(data.samples["train"]) if options_of(settings).form == "raw" else None


def with_second_opinion(scores: Scores, data: CodeDetectorData, opinion: SecondOpinion | None) -> Scores:
    """The scores with those of the second opinion beside them."""
    if opinion is None:
        return scores
    return {split: replace(own, second=opinion.of_samples(data.samples[split])) for split, own in scores.items()}


def write_quality(scores: Scores, data: CodeDetectorData, settings: Settings, folder: Path) -> None:
    """The card and the second opinion of an exported model into its folder."""
    opinion = second_opinion(data, settings)
    if opinion is not None:
        opinion.save(folder)
    write_card(make_card(with_second_opinion(scores, data, opinion), data, settings), folder)


def with_baselines(
    scores: Scores, data: CodeDetectorData, baselines: Sequence[BaselineResult], settings: Settings
) -> Judgement:
    """Every figure of the detector beside the mandatory baselines, thresholds from validation."""
    samples = data.samples["test"]
    test = scored(samples, scores["test"].probabilities)
    detector = report(scored(data.samples["val"], scores["val"].probabilities), test, slices_of(samples))
    metrics = all_metrics(detector, baselines)
    metrics["task_pair_auc"] = task_pair_auc(scores["test"], data, "test")
    rows = [_row("detector", "raw", detector), *(_row(b.name, b.form, b.report) for b in baselines)]
    note = (
        f"{detector.samples:,} held-out files, {detector.prevalence:.0%} AI-written, no group shared with training. "
        f"95 % interval of the detector's AUC over groups: {detector.roc_auc_low:.3f} to {detector.roc_auc_high:.3f}. "
        f"TPR1 and TPR5: thresholds chosen on validation for 1 % and 5 % false positives; FPR1 and FPR5 are what they "
        f"gave on test. {standing(test, baselines, options_of(settings).form)}"
    )
    card = make_card(scores, data, settings)
    tables = [
        ResultTable(title="Detector beside its baselines", note=note, columns=COLUMNS, rows=rows),
        *card_tables(card),
    ]
    return Judgement(metrics | card_metrics(card), tables, [coverage_curve(card)])


def related_tables(ledger: Ledger, run_id: str) -> list[ResultTable]:
    """Tables from other runs of the ledger: how a detector with these settings does on parts it has not seen."""
    return [unseen_table(ledger, run_id)]


def _row(name: str, form: str, result: ClassificationReport) -> list[Cell]:
    low, high = result.operating_points[-2:]
    points: list[Cell] = [low.tpr, low.fpr, high.tpr, high.fpr]
    return [name, form, result.roc_auc, result.average_precision, result.accuracy, result.f1, *points]


def standing(test: Scored, baselines: Sequence[BaselineResult], form: str) -> str:
    """Plain words on the detector against each baseline that reads this form, by paired differences of the AUC."""
    comparisons = []
    for baseline in baselines:
        if baseline.form == form:
            difference = auc_difference(test, baseline.test_scores)
            word = "above" if difference.low > 0 else "below" if difference.high < 0 else "not told apart from"
            interval = f"{difference.value:+.3f}, {difference.low:+.3f} to {difference.high:+.3f}"
            comparisons.append(f"{word} {baseline.name} ({interval})")
    return f"AUC is {', '.join(comparisons)}."


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.runs.local import run_locally

    run_locally(load_experiment(SETTINGS), default_url())


if __name__ == "__main__":
    main()
