import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.evaluate.classification import Scored
from forerun.recipes.code_detector.evaluation import decision as d


def scored(human, ai):
    labels = np.asarray([0] * len(human) + [1] * len(ai))
    return Scored(labels, np.asarray([*human, *ai], dtype=float), tuple(str(n) for n in range(len(labels))))


def test_upper_bound_is_the_known_one():
    """The rule of three, and the exact values: 1 - 0.05^(1/n) with no hit."""
    assert d.upper_bound(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert d.upper_bound(0, 300) == pytest.approx(3 / 300, rel=0.01)
    assert d.upper_bound(1, 596) == pytest.approx(
        0.00794, abs=5e-5
    )  # solves Σ_{k<=1} C(596,k) p^k (1-p)^(596-k) = 0.05


def test_a_budget_needs_enough_files():
    assert d.files_needed(0.01) == 299
    assert d.files_needed(0.001) == 2995
    human = np.linspace(0, 0.9, 298)
    assert d.certified_threshold(scored(human, [1.0]), 0.01) is None
    human = np.linspace(0, 0.9, 299)
    assert d.certified_threshold(scored(human, [1.0]), 0.01) == (0.9, 0)


@given(st.integers(300, 900), st.sampled_from([0.01, 0.05, 0.1]), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_the_promise_is_kept_and_the_next_lower_threshold_would_break_it(files, budget, seed):
    human = np.random.default_rng(seed).random(files)
    certificate = d.certified_threshold(scored(human, [1.0]), budget)
    assert certificate is not None
    threshold, flagged = certificate
    assert flagged == (human > threshold).sum()
    assert d.upper_bound(flagged, files) <= budget < d.upper_bound(flagged + 1, files)


@given(st.integers(300, 700), st.sampled_from([0.01, 0.05]), st.floats(0, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_a_pair_keeps_its_promise_and_flags_nothing_that_the_first_reader_would_not(files, budget, likeness, seed):
    random = np.random.default_rng(seed)
    human, ai = random.random(files), random.random(files // 2) + 0.5
    validation = scored(human, ai)
    second = likeness * validation.scores**3 + (1 - likeness) * random.random(len(validation.scores))
    certificate = d.certified_pair(validation, second, budget)
    assert certificate is not None
    first_threshold, second_threshold, flagged = certificate
    above = (validation.scores > first_threshold) & (second > second_threshold)
    assert flagged == above[: len(human)].sum()
    assert d.upper_bound(flagged, files) <= budget
    alone, _ = d.certified_threshold(validation, budget) or (0.0, 0)
    place, firsts = int((second < second_threshold).sum()), np.sort(validation.scores)
    assert first_threshold == max(alone, firsts[place])  # what both flag, the first alone would flag too
    looser = (validation.scores > firsts[place - 1]) & (second > np.sort(second)[place - 1])
    assert d.upper_bound(int(looser[: len(human)].sum()), files) > budget


def test_a_point_with_a_second_opinion_flags_what_lies_above_both():
    validation, test = scored(np.linspace(0, 0.5, 400), [0.9] * 10), scored([0.1] * 98 + [0.7] * 2, [0.9] * 10)
    second = np.linspace(0, 0.5, 410), np.asarray([0.1] * 99 + [0.7] + [0.9] * 4 + [0.1] * 6)
    alone, pair = d.budget_point(validation, test, 0.01), d.budget_point(validation, test, 0.01, second)
    assert (alone.tpr, alone.fpr, alone.second_threshold) == (1.0, 0.02, None)
    assert (pair.tpr, pair.fpr) == (0.4, 0.01)
    assert pair.second_threshold is not None
    assert d.budget_point(validation, test, 0.001, second).second_threshold is None


def test_ties_are_not_flagged():
    human = [0.2] * 400 + [0.8] * 200
    threshold, flagged = d.certified_threshold(scored(human, [1.0]), 0.05) or (0, 0)
    assert (threshold, flagged) == (0.8, 0)


def test_point_measures_test_and_not_validation():
    validation, test = scored(np.linspace(0, 0.5, 400), [0.9] * 10), scored([0.1] * 99 + [0.7], [0.9] * 8 + [0.3] * 2)
    point = d.budget_point(validation, test, 0.01)
    assert (point.tpr, point.fpr) == (0.8, 0.01)
    assert point.fpr_high == pytest.approx(0.0545, abs=1e-4)  # Clopper-Pearson of 1 in 100
    assert point.ppv["0.1"] == pytest.approx(0.08 / (0.08 + 0.9 * (point.fpr_high or 0)))
    none = d.budget_point(validation, test, 0.001)
    assert (none.threshold, none.tpr, set(none.ppv.values())) == (None, None, {None})


def test_ppv_of_the_origin():
    """TPR 0.85 at 12 % false positives and 10 % prevalence: 0.44; TPR 0.60 at 1 %: 0.87."""
    assert d.ppv(0.85, 0.12, 0.1) == pytest.approx(0.44, abs=0.005)
    assert d.ppv(0.60, 0.01, 0.1) == pytest.approx(0.87, abs=0.005)
    assert d.ppv(0.0, 0.0, 0.1) is None


def test_calibration_undoes_a_known_distortion():
    """Scores whose log-odds are twice too large and shifted by one."""
    random = np.random.default_rng(0)
    truth = random.normal(0, 1.5, 40_000)
    labels = (random.random(40_000) < 1 / (1 + np.exp(-truth))).astype(int)
    wrong = 1 / (1 + np.exp(-(2 * truth + 1)))
    fitted = d.fit_calibration(Scored(labels, wrong, tuple(map(str, range(40_000)))))
    assert fitted.slope == pytest.approx(0.5, abs=0.02)  # standard error 0.006
    assert fitted.intercept == pytest.approx(-0.5, abs=0.05)
    assert fitted(np.asarray([0.5]))[0] == pytest.approx(1 / (1 + np.exp(0.5)), abs=0.02)


def test_leaving_the_uncertain_alone():
    test = scored([0.1, 0.2, 0.6, 0.3], [0.9, 0.45, 0.8, 0.95])
    whole, *rest = d.by_certainty(test)
    assert (whole.coverage, whole.error, whole.files) == (1.0, 0.25, 8)
    assert rest[-1].error == 0.0
    assert rest[-1].files == 4
    points = d.by_size(test, [10, 20, 5, 40, 50, 6, 70, 80], [0, 10, 1000])
    assert [(p.limit, p.files, p.error) for p in points] == [(0.0, 8, 0.25), (10.0, 6, 0.0)]
