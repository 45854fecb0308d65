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

Judged = tuple[LabelPredictions, Decision]


def held_out_scores(opened: Experiment, step: TrainingStep) -> Probabilities:
    """Probabilities of the rows that no search has seen."""
    data = opened.data
    assert isinstance(data, TextData)
    precision = opened.settings.precision
    return {
        "threshold": score_part(step.model, data, "threshold", precision),
        "test": score_part(step.model, data, "test", precision),
    }


def final_comparison(
    opened: Experiment, scores: Mapping[str, Sequence[Probabilities]], winner: str, start: int
) -> dict[str, Any]:
    """Figures of the winner's starting point `start` beside the baselines, and of every finalist beside the winner."""
    data = opened.data
    assert isinstance(data, TextData)
    metric = recipe_options(opened.settings, TextClassifierOptions).metric
    judged = {name: [_judged(data, one) for one in several] for name, several in scores.items()}
    best = judged[winner][start]
    metrics, beaten = figures(*best), {}
    for name, found in baseline_answers(data, "test").items():
        metrics |= {f"{name}.{figure}": value for figure, value in figures(*found).items()}
        beaten[name] = list(paired_gap(best[0], found[0], metric, (best[1], found[1])))
    return {
        "metric": metric,
        "rows": len(best[0].targets),
        "split": data.corpus.split_hash,
        "metrics": metrics,
        "decision": list(best[1].levels),
        "over_baselines": beaten,
        "finalists": {
            name: {
                "scores": [figures(*one)[metric] for one in several],
                "below_winner": [0.0, 0.0, 0.0] if name == winner else list(_gap(judged[winner], several, metric)),
            }
            for name, several in judged.items()
        },
    }


def baseline_scores(opened: Experiment) -> dict[str, float]:
    """The metric of every baseline on the selection rows, where trials are compared."""
    data = opened.data
    assert isinstance(data, TextData)
    metric = recipe_options(opened.settings, TextClassifierOptions).metric
    return {name: one_figure(found[0], metric, found[1]) for name, found in baseline_answers(data, "selection").items()}


def _judged(data: TextData, scores: Probabilities) -> Judged:
    return answers(data, "test", scores["test"]), tune_decision(answers(data, "threshold", scores["threshold"]))


def _gap(first: Sequence[Judged], second: Sequence[Judged], metric: str) -> tuple[float, float, float]:
    """Mean figure of `first`'s starting points minus that of `second`'s, and its 95 % interval over rows."""
    rows = len(first[0][0].targets)
    random = np.random.default_rng(0)

    def mean(several: Sequence[Judged], chosen: np.ndarray) -> float:
        found = []
        for known, decision in several:
            part = LabelPredictions(known.targets[chosen], known.probabilities[chosen], known.is_multi_label)
            found.append(one_figure(part, metric, decision))
        return float(np.mean(found))

    every = np.arange(rows)
    value = mean(first, every) - mean(second, every)
    drawn = []
    for _ in range(DRAWS):
        chosen = random.integers(0, rows, rows)
        drawn.append(mean(first, chosen) - mean(second, chosen))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return value, float(low), float(high)
