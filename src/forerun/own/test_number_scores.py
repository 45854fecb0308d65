"""Scores of numbers on rows drawn again agree with those of the rows themselves, whichever score judges."""

from types import SimpleNamespace

import numpy as np
import pytest

from forerun.own.number_scores import NUMBER_SCORES, drawn_scores, judge_numbers, number_scores


def rows(seed, count=120):
    chance = np.random.default_rng(seed)
    targets = chance.normal(size=count)
    texts = [f"word{n % 7} text" for n in range(count)]
    return SimpleNamespace(texts=texts, lengths=np.arange(count), targets=targets, note="")


@pytest.mark.parametrize("score", NUMBER_SCORES)
def test_scores_of_rows_drawn_again_lie_around_the_score(score):
    test = rows(1)
    answers = test.targets + np.random.default_rng(2).normal(size=120)
    low, high = np.quantile(drawn_scores(score, test.targets, answers), [0.025, 0.975])
    assert low < number_scores(test.targets, answers)[score] < high


@pytest.mark.parametrize("score", NUMBER_SCORES)
def test_the_interval_is_of_the_score_that_was_asked_for(score):
    train, test = rows(1), rows(3)
    exact = judge_numbers(test.targets.copy(), train, test, score).metrics
    sign = 1 if NUMBER_SCORES[score] else -1
    assert min(sign * exact[f"{score}.gap.low"], sign * exact[f"{score}.gap.high"]) > 0
    chance = judge_numbers(np.full(120, train.targets.mean() + 1e-3), train, test, score).metrics
    assert chance[f"{score}.gap.low"] <= 0 <= chance[f"{score}.gap.high"] or sign * chance[f"{score}.gap.high"] < 0
