"""The end of a search over `text-classifier`: finalists on the test rows, each with thresholds of its own, and paired.

Gaps between finalists are paired over rows drawn with replacement: in each draw the mean figure over a finalist's
starting points minus that of the winner. The baselines are compared with the winner's starting point that is exported.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.evaluate.label_metrics import (
    DRAWS,
    Decision,
    LabelPredictions,
    figures,
    one_figure,
    paired_gap,
    tune_decision,
)
from forerun.recipes.text_classifier.data import TextClassifierOptions, TextData
from forerun.recipes.text_classifier.evaluation import Probabilities, answers, baseline_answers, score_part
from forerun.runs.recipe import Experiment
from forerun.settings.load import recipe_options
from forerun.step.training_step import TrainingStep

DecidedPredictions = tuple[LabelPredictions, Decision]


def held_out_scores(experiment: Experiment, step: TrainingStep) -> Probabilities:
    """Probabilities of the rows that no search has seen."""
    data = experiment.data
    assert isinstance(data, TextData)
    precision = experiment.settings.precision
    return {
        "threshold": score_part(step.model, data, "threshold", precision),
        "test": score_part(step.model, data, "test", precision),
    }


def final_comparison(
    experiment: Experiment, scores: Mapping[str, Sequence[Probabilities]], winner: str, start: int
) -> dict[str, Any]:
    """Figures of the winner's starting point `start` beside the baselines, and of every finalist beside the winner."""
    data = experiment.data
    assert isinstance(data, TextData)
    metric = recipe_options(experiment.settings, TextClassifierOptions).metric
    decided = {name: [_decided(data, one) for one in several] for name, several in scores.items()}
    best = decided[winner][start]
    metrics, gaps = figures(*best), {}
    for name, baseline in baseline_answers(data, "test").items():
        metrics |= {f"{name}.{figure}": value for figure, value in figures(*baseline).items()}
        gaps[name] = list(paired_gap(best[0], baseline[0], metric, (best[1], baseline[1])))
    return {
        "metric": metric,
        "rows": len(best[0].targets),
        "split": data.corpus.split_hash,
        "metrics": metrics,
        "decision": list(best[1].levels),
        "over_baselines": gaps,
        "finalists": {
            name: {
                "scores": [figures(*one)[metric] for one in several],
                "below_winner": [0.0, 0.0, 0.0] if name == winner else list(_gap(decided[winner], several, metric)),
            }
            for name, several in decided.items()
        },
    }


def baseline_scores(experiment: Experiment) -> dict[str, float]:
    """The metric of every baseline on the selection rows, where trials are compared."""
    data = experiment.data
    assert isinstance(data, TextData)
    metric = recipe_options(experiment.settings, TextClassifierOptions).metric
    return {
        name: one_figure(baseline[0], metric, baseline[1])
        for name, baseline in baseline_answers(data, "selection").items()
    }


def _decided(data: TextData, scores: Probabilities) -> DecidedPredictions:
    return answers(data, "test", scores["test"]), tune_decision(answers(data, "threshold", scores["threshold"]))


def _gap(
    first: Sequence[DecidedPredictions], second: Sequence[DecidedPredictions], metric: str
) -> tuple[float, float, float]:
    """Mean figure of `first`'s starting points minus that of `second`'s, and its 95 % interval over rows."""
    rows = len(first[0][0].targets)
    random = np.random.default_rng(0)  # the same draws for every pair, so that gaps can be compared

    def mean(several: Sequence[DecidedPredictions], indices: np.ndarray) -> float:
        values = []
        for predictions, decision in several:
            part = LabelPredictions(
                predictions.targets[indices], predictions.probabilities[indices], predictions.is_multi_label
            )
            values.append(one_figure(part, metric, decision))
        return float(np.mean(values))

    every = np.arange(rows)
    value = mean(first, every) - mean(second, every)
    gaps = []
    for _ in range(DRAWS):
        indices = random.integers(0, rows, rows)
        gaps.append(mean(first, indices) - mean(second, indices))
    low, high = np.quantile(gaps, [0.025, 0.975])
    return value, float(low), float(high)
