import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.evaluate import classification as c


def scored(labels, scores, groups=None) -> c.Scored:
    names = range(len(labels)) if groups is None else groups
    return c.Scored(np.asarray(labels), np.asarray(scores, dtype=float), tuple(map(str, names)))


def noisy(size: int = 400, shift: float = 1.0, seed: int = 0) -> c.Scored:
    random = np.random.default_rng(seed)
    labels = np.arange(size) % 2
    return scored(labels, 1 / (1 + np.exp(-random.normal(shift * (2 * labels - 1), 1.0))))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), min_size=2, max_size=30))
@settings(max_examples=80, deadline=None)
def test_auc_is_the_probability_over_all_pairs(rows):
    positives = [s for label, s in rows if label]
    negatives = [s for label, s in rows if not label]
    labels, scores = zip(*rows, strict=True)
    if not positives or not negatives:
        with pytest.raises(ValueError, match="both classes"):
            c.roc_auc(labels, scores)
        return
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    assert c.roc_auc(labels, scores) == pytest.approx(sum(pairs) / len(pairs))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_auc_and_average_precision_agree_with_scikit_learn(rows):
    from sklearn.metrics import average_precision_score, roc_auc_score

    labels, scores = map(np.asarray, zip(*rows, strict=True))
    if 0 < labels.sum() < len(labels):
        assert c.roc_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))
        assert c.average_precision(labels, scores) == pytest.approx(average_precision_score(labels, scores))


def test_weights_count_like_repeated_rows():
    labels, scores = [0, 1, 1, 0], [0.1, 0.4, 0.35, 0.8]
    repeated = c.roc_auc([0, 0, 1, 1, 1, 1, 0], [0.1, 0.1, 0.4, 0.4, 0.4, 0.35, 0.8])
    assert c.roc_auc(labels, scores, [2, 3, 1, 1]) == pytest.approx(repeated)


def test_constant_scores_are_chance():
    test = scored([0, 1] * 10, [0.5] * 20)
    assert c.roc_auc(test.labels, test.scores) == 0.5
    assert c.average_precision(test.labels, test.scores) == 0.5
    assert c.operating_point(test, test, 0.05).tpr == 0.0


def test_threshold_admits_at_most_the_wanted_share_of_validation_negatives():
    validation = scored([0] * 100 + [1] * 100, [*np.linspace(0, 1, 100), *np.linspace(0, 1, 100)])
    for rate, expected in ((0.01, 1), (0.05, 5), (0.0, 0), (0.999, 99)):
        flagged = validation.scores > c.threshold_at(validation, rate)
        assert int(flagged[:100].sum()) == expected


def test_operating_point_is_measured_on_test():
    validation, test = noisy(seed=1), noisy(seed=2)
    point = c.operating_point(validation, test, 0.05)
    flagged = test.scores > point.threshold
    assert point.tpr == pytest.approx(flagged[test.labels == 1].mean())
    assert point.fpr == pytest.approx(flagged[test.labels == 0].mean())
    assert point.fpr_low < point.fpr < point.fpr_high
    expected = 0.1 * point.tpr / (0.1 * point.tpr + 0.9 * point.fpr)
    assert point.precision_at_stated_prevalence == pytest.approx(expected)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(0, 10, 0.0, 0.3085), (1, 10, 0.0025, 0.4450), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0)],
)
def test_clopper_pearson_equals_published_tables(hits, trials, low, high):
    """95 % limits for n = 10 as printed in standard binomial tables, four digits."""
    assert c.clopper_pearson(hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_calibration_error():
    perfect = np.repeat([0.0, 1.0], 150)
    assert c.expected_calibration_error(perfect, perfect) == 0.0
    assert c.expected_calibration_error(perfect, 1 - perfect, bins=10) == 1.0
    assert c.expected_calibration_error([0, 1] * 15, [0.8] * 30) == pytest.approx(0.3)


def test_bootstrap_interval_widens_when_rows_come_in_groups():
    single = noisy(600)
    grouped = scored(np.repeat(single.labels[:60], 10), np.repeat(single.scores[:60], 10), np.repeat(range(60), 10))
    narrow, wide = c.bootstrap_auc(single), c.bootstrap_auc(grouped)
    assert narrow[0] < c.roc_auc(single.labels, single.scores) < narrow[1]
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


def test_paired_difference_is_surer_than_two_intervals():
    test = noisy(600)
    same = c.auc_difference(test, test.scores)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    worse = np.clip(test.scores + np.random.default_rng(5).normal(0, 0.05, 600), 0, 1)
    difference = c.auc_difference(test, worse)
    assert difference.value == pytest.approx(c.roc_auc(test.labels, test.scores) - c.roc_auc(test.labels, worse))
    assert difference.low <= difference.value <= difference.high
    low, high = c.bootstrap_auc(test)
    assert difference.high - difference.low < 0.5 * (high - low)


def test_report_slices_and_flat_metrics():
    validation, test = noisy(seed=1), noisy(seed=2)
    language = ["python" if i % 3 else "java" for i in range(400)]
    report = c.report(validation, test, {"language": language, "label": ["ai" if x else "human" for x in test.labels]})
    assert report.slices["language=java"].samples + report.slices["language=python"].samples == 400
    assert report.slices["label=ai"].roc_auc is None
    metrics = report.metrics("test_")
    assert metrics["test_roc_auc"] == report.roc_auc
    assert "test_tpr_at_1_percent_fpr" in metrics
    assert "test_roc_auc[language=java]" in metrics
    assert report.f1 == pytest.approx(0.84, abs=0.03)
    assert c.ClassificationReport.model_validate_json(report.model_dump_json()) == report


def test_unequal_lengths_and_nan_are_refused():
    with pytest.raises(ValueError, match="one label, score and group"):
        scored([0, 1], [0.1])
    with pytest.raises(ValueError, match="finite"):
        scored([0, 1], [0.1, float("nan")])
