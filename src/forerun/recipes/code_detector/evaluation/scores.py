"""How a trained detector is judged: scores of a split, the report beside its baselines, and the success criteria.

The criteria are data: each compares one metric with a number, with another metric, or with the best of the baselines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from forerun.evaluate.classification import ClassificationReport, Floats, report, roc_auc
from forerun.recipes.code_detector.data.corpus import Split
from forerun.recipes.code_detector.data.training_data import EVALUATION_BATCH_TOKENS, CodeDetectorData
from forerun.recipes.code_detector.evaluation.baselines import BaselineResult, Form, scored, slices_of
from forerun.recipes.code_detector.options import options_of
from forerun.settings.schema import Precision, Settings
from forerun.step.precision import POLICIES
from forerun.train.recovery import in_pieces
from forerun.verify.compare import Criterion


@dataclass(frozen=True)
class SplitScores:
    """Outcome on every sample of a split, in its order."""

    probabilities: Floats
    """Probability that the file is AI-written."""
    vectors: np.ndarray
    """Unit vectors (samples, 128) of the embedding head."""
    least: Floats | None = None
    """Least probability of each file and its decisive windows, which verdicts rest on; None where there are none."""
    second: Floats | None = None
    """Probabilities of the second opinion (`evaluation/second_opinion.py`); None where none was asked."""

    @property
    def decisive(self) -> Floats:
        """Probabilities that verdicts rest on."""
        return self.probabilities if self.least is None else self.least


CRITERIA = (
    Criterion(name="separates human from AI", quantity="roc_auc", comparison="above", bound=0.95),
    Criterion(name="beats the strongest baseline", quantity="roc_auc", comparison="above", bound="*.raw.roc_auc"),
    Criterion(
        name="beats length alone", quantity="roc_auc", comparison="above", bound="length-only.raw.roc_auc", margin=0.05
    ),
    Criterion(
        name="beats the majority", quantity="accuracy", comparison="above", bound="majority.none.accuracy", margin=0.05
    ),
    Criterion(
        name="metadata does not give the label away",
        quantity="metadata-probe.none.roc_auc",
        comparison="below",
        bound=0.55,
    ),
    Criterion(
        name="contrastive loss respects its floor", quantity="author_loss", comparison="above", bound="author_floor"
    ),
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.30),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.15),
)
"""Criteria of `forerun run code-detector` with the shipped settings and rows. The run adds `author_loss` and
`author_floor` from its step reports to the metrics."""


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """All for the shipped task; with a part held out or formatting taken away, what must hold for any run."""
    options = options_of(settings)
    if options.hold_out or options.form != "raw":
        return tuple(c for c in CRITERIA if c.comparison == "error within" or c.quantity == "author_loss")
    return CRITERIA


def baseline_forms(settings: Settings) -> tuple[Form, ...]:
    """Forms of the code that the baselines read: both; the run's own where a part is held out, for half the time."""
    options = options_of(settings)
    return (options.form,) if options.hold_out else ("raw", "normalised")


def score_split(
    model: nn.Module, data: CodeDetectorData, split: Split, *, precision: Precision = "fp32", limit: int | None = None
) -> SplitScores:
    """Score a split (its first `limit` samples) on the model's device; the training mode is put back after."""
    device = next(model.parameters()).device
    size = len(data.samples[split][:limit])
    was_training = model.training
    probabilities, vectors = np.zeros(size), None
    model.eval()
    with torch.no_grad(), POLICIES[precision].autocast(device.type):
        for indices, batch in data.evaluation_batches(split, limit):
            outputs = in_pieces(lambda b: model(b["input_ids"].to(device), b["attention_mask"].to(device)), batch)
            batch_vectors = torch.cat([output.vectors for output in outputs]).float().cpu().numpy()
            vectors = np.zeros((size, batch_vectors.shape[1]), dtype=np.float32) if vectors is None else vectors
            logits = torch.cat([output.logits for output in outputs])
            probabilities[indices] = logits.float().softmax(dim=1)[:, 1].cpu().numpy()
            vectors[indices] = batch_vectors
    model.train(was_training)
    return SplitScores(probabilities, vectors if vectors is not None else np.zeros((0, 0), dtype=np.float32))


def with_windows(
    scores: SplitScores, model: nn.Module, data: CodeDetectorData, split: Split, precision: Precision = "fp32"
) -> SplitScores:
    """The scores with the least of each long file's windows beside them."""
    rows = [(number, ids) for number, windows in enumerate(data.windows.get(split, [])) for ids in windows]
    if not rows:
        return scores
    device, was_training, least = next(model.parameters()).device, model.training, scores.probabilities.copy()
    model.eval()
    with torch.no_grad(), POLICIES[precision].autocast(device.type):
        size = max(1, EVALUATION_BATCH_TOKENS // len(rows[0][1]))
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            ids = torch.from_numpy(np.stack([tokens for _, tokens in part]).astype(np.int64))
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            outputs = in_pieces(lambda b: model(b["input_ids"].to(device), b["attention_mask"].to(device)), batch)
            logits = torch.cat([output.logits for output in outputs]).float()
            np.minimum.at(least, [number for number, _ in part], logits.softmax(dim=1)[:, 1].cpu().numpy())
    model.train(was_training)
    return replace(scores, least=least)


def evaluate_detector(
    model: nn.Module, data: CodeDetectorData, *, precision: Precision = "fp32", split: Split = "test"
) -> ClassificationReport:
    """Every figure on `split`, thresholds from validation, by language and source."""
    samples = data.samples[split]
    validation = score_split(model, data, "val", precision=precision)
    here = validation if split == "val" else score_split(model, data, split, precision=precision)
    return report(
        scored(data.samples["val"], validation.probabilities), scored(samples, here.probabilities), slices_of(samples)
    )


def task_pair_auc(scores: SplitScores, data: CodeDetectorData, split: Split) -> float:
    """P(two files of one group are more similar than two of different groups), by cosine of the embedding head.

    Most groups of the shipped rows are near-duplicates, so this says that the vectors are alive, not that they find
    disguised copies.
    """
    groups = np.asarray([data.group_numbers[sample.group] for sample in data.samples[split][: len(scores.vectors)]])
    first, second = np.triu_indices(len(groups), k=1)
    return roc_auc(groups[first] == groups[second], (scores.vectors @ scores.vectors.T)[first, second])


def all_metrics(detector: ClassificationReport, baselines: Sequence[BaselineResult]) -> dict[str, float]:
    """One flat table for a measurement: the detector's figures, and `name.form.figure` for each baseline."""
    table = detector.metrics()
    for result in baselines:
        table |= result.report.metrics(f"{result.name}.{result.form}.")
    return table
