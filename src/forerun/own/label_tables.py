"""Tables of a classifier's answers: by label, confusions, calibration, by length, and its surest mistakes."""

from collections.abc import Sequence

import numpy as np

from forerun.evaluate.label_metrics import Decision, LabelPredictions, figures, precision_by_label
from forerun.evaluate.proportions import wilson
from forerun.report.tables import Cell, ResultTable

MOST_LABELS = 12
"""Labels up to which the confusion table has a row and a column for each."""
EXAMPLES, TEXT_LENGTH = 8, 160
CALIBRATION_BINS = 10
THIRDS = ("shortest third", "middle third", "longest third")


def label_table(names: Sequence[str], answers: LabelPredictions, decision: Decision) -> ResultTable:
    """Rows, F1, average precision and threshold of each label."""
    labels, precisions = decision.labels(answers), precision_by_label(answers)
    rows: list[list[Cell]] = []
    for number, name in enumerate(names):
        true, predicted = answers.targets[:, number], labels[:, number]
        hits, both = int((true * predicted).sum()), int(true.sum() + predicted.sum())
        score = 2 * hits / both if both else 0.0
        rows.append([name, int(true.sum()), score, precisions[number], decision.levels[number]])
    note = "Threshold: tuned, or one half where labels are weighed alike."
    return ResultTable(
        title="By label", note=note, columns=["label", "rows", "F1", "average precision", "threshold"], rows=rows
    )


def confusion_table(names: Sequence[str], answers: LabelPredictions, decision: Decision) -> ResultTable:
    """True labels down, answers across; of many labels only the confusions, the most frequent first."""
    true, predicted = answers.targets.argmax(axis=1), decision.labels(answers).argmax(axis=1)
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (true, predicted), 1)
    rows: list[list[Cell]] = []
    if len(names) <= MOST_LABELS:
        for name, row in zip(names, counts.tolist(), strict=True):
            rows.append([name, *row])
        return ResultTable(title="Confusions", note="Rows: true.", columns=["true", *names], rows=rows)
    pairs = [(int(counts[a, b]), a, b) for a, b in np.argwhere(counts).tolist() if a != b]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    for count, a, b in pairs[:MOST_LABELS]:
        rows.append([names[a], names[b], count])
    return ResultTable(
        title="Confusions", note=f"The most frequent of {len(pairs)} kinds.", columns=["true", "answer", "rows"],
        rows=rows,
    )  # fmt: skip


def calibration_table(answers: LabelPredictions) -> ResultTable:
    """How often answers of a confidence are right, in bins of equally many rows."""
    if answers.is_multi_label:
        confidence, right = answers.probabilities.ravel(), answers.targets.ravel()
    else:
        top = answers.probabilities.argmax(axis=1)
        confidence, right = answers.probabilities.max(axis=1), answers.targets[np.arange(len(top)), top]
    rows: list[list[Cell]] = []
    for part in np.array_split(np.argsort(confidence, kind="stable"), min(CALIBRATION_BINS, len(confidence))):
        share = wilson(int(right[part].sum()), len(part))
        rows.append([len(part), float(confidence[part].mean()), share.value, share.low, share.high])
    columns = ["answers", "mean confidence", "right", "low", "high"]
    note = f"ECE {figures(answers, Decision((0.5,) * answers.targets.shape[1]))['ece']:.3f}; 95 % intervals."
    return ResultTable(title="Calibration", note=note, columns=columns, rows=rows)


def thirds(lengths: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Indices of the shortest, the middle and the longest third."""
    return np.array_split(np.argsort(lengths, kind="stable"), 3)


def length_table(answers: LabelPredictions, decision: Decision, lengths: Sequence[int] | np.ndarray) -> ResultTable:
    """Scores of the rows by their length in tokens."""
    rows: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(lengths), strict=True):
        if not len(part):
            continue
        own = LabelPredictions(answers.targets[part], answers.probabilities[part], answers.is_multi_label)
        scores = figures(own, decision)
        size = np.asarray(lengths)[part]
        rows.append([
            name, f"{size.min()} to {size.max()}", len(part), scores["micro_f1"], scores["macro_f1"], scores["ece"],
        ])  # fmt: skip
    columns = ["rows", "tokens", "count", "micro_f1", "macro_f1", "ece"]
    return ResultTable(title="By length", columns=columns, rows=rows)


def mistake_table(
    names: Sequence[str], texts: Sequence[str], answers: LabelPredictions, decision: Decision
) -> ResultTable:
    """The mistakes that the model was surest of: some are wrong labels of the data.

    Their probability is the answer's; of several labels, each a yes or no, that of the surest wrong one.
    """
    predictions = decision.labels(answers)
    wrong = np.flatnonzero((predictions != answers.targets).any(axis=1))
    if answers.is_multi_label:
        chance = np.where(predictions == 1, answers.probabilities, 1 - answers.probabilities)
        sureness = np.where(predictions != answers.targets, chance, 0.0).max(axis=1)
    else:
        sureness = (predictions * answers.probabilities).sum(axis=1)
    worst: list[int] = wrong[np.argsort(-sureness[wrong], kind="stable")][:EXAMPLES].tolist()

    def labels(row: np.ndarray) -> str:
        return ", ".join(names[number] for number in np.flatnonzero(row).tolist()) or "none"

    rows: list[list[Cell]] = [
        [shortened(texts[n]), labels(answers.targets[n]), labels(predictions[n]), float(sureness[n])] for n in worst
    ]
    note = f"{len(wrong)} of {len(texts)} rows are wrong; those it was surest of. Look at them: labels err too."
    return ResultTable(title="Mistakes", note=note, columns=["text", "true", "answer", "probability"], rows=rows)


def shortened(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LENGTH else f"{line[: TEXT_LENGTH - 1]}…"
