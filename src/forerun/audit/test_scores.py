"""Floors, baselines, noise and error rates, beside numbers worked out by hand."""

import math

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings


@pytest.mark.parametrize(
    ("check", "verdict", "right"),
    [
        ({"kind": "contrastive-loss", "claimed": [2.2], "classes": 2, "batch": 18}, "consistent", "2.08"),
        ({"kind": "contrastive-loss", "claimed": [2.0], "classes": 2, "batch": 18}, "impossible", "2.08"),
        ({"kind": "contrastive-loss", "claimed": [2.2], "classes": 2, "batch": 20, "keeps_self": True}, "impossible", "2.30"),
        ({"kind": "floor", "name": "l", "claimed": 0.9, "floor": 1.0}, "impossible", "at least 1"),
        ({"kind": "floor", "name": "l", "claimed": 1.1, "floor": 1.0}, "consistent", "at least 1"),
        ({"kind": "classification-loss", "loss": 0.69, "auc": 0.8}, "unsupported", "chance 0.693"),
        ({"kind": "classification-loss", "loss": 0.55, "auc": 0.8}, "consistent", "calibrated at this AUC 0.5"),
        ({"kind": "classification-loss", "loss": -0.1}, "impossible", "at least 0"),
        ({"kind": "metric", "name": "accuracy", "claimed": 0.9}, "unsupported", "–"),
        ({"kind": "metric", "name": "accuracy", "claimed": 0.9, "baselines": {"majority": 0.95}}, "wrong", "majority: 0.95"),
        ({"kind": "metric", "name": "accuracy", "claimed": "> 0.9", "baselines": {"majority": 0.95}}, "wrong", "majority: 0.95"),
        ({"kind": "metric", "name": "accuracy", "claimed": 0.97, "baselines": {"majority": 0.95}}, "unsupported", "majority"),
        ({"kind": "metric", "name": "accuracy", "claimed": 0.909, "baselines": {"none": 0.907}, "samples": 200, "evidence": "r"}, "wrong", "none"),
        ({"kind": "metric", "name": "accuracy", "claimed": 0.97, "baselines": {"a": 0.9}, "samples": 500, "evidence": "r"}, "consistent", "a: 0.9"),
        ({"kind": "metric", "name": "ppl", "claimed": 30, "higher_is_better": False, "baselines": {"bigrams": 170}, "evidence": "r"}, "consistent", "170"),
        ({"kind": "difference", "first": "92%", "second": "88%", "samples": 50}, "wrong", "882"),
        ({"kind": "difference", "first": "92%", "second": "88%", "samples": 900}, "consistent", "882"),
        ({"kind": "difference", "first": "92%", "second": "92%", "samples": 900}, "wrong", "no difference"),
        ({"kind": "error-rates", "false_positive_rate": "10%", "accuracy": "85%"}, "consistent", "0.80"),
        ({"kind": "error-rates", "false_positive_rate": "60%", "accuracy": "90%"}, "impossible", "1.40"),
        ({"kind": "text-tokens", "claimed": 200, "longest": "1 + 1 = 2"}, "impossible", "at most 11"),
        ({"kind": "text-tokens", "claimed": 7, "longest": "1 + 1 = 2"}, "consistent", "at most 11"),
        ({"kind": "leak", "auc": 0.99, "source": "r"}, "wrong", "0.99"),
        ({"kind": "leak", "auc": 0.52, "source": "r"}, "consistent", "0.52"),
    ],
)  # fmt: skip
def test_scores(check, verdict, right):
    finding = check_one(check)
    assert finding.verdict == verdict, finding
    assert right in finding.right


def test_a_rare_positive_is_mostly_a_false_one():
    """Of 1,000 with 100 positives 80 are found beside 90 others: 47.1 %."""
    assert "47.1 %" in check_one({"kind": "error-rates", "false_positive_rate": "10%", "accuracy": "85%"}).said


def test_calibrated_loss_of_no_and_of_perfect_skill():
    for auc, loss in ((0.5, math.log(2)), (0.999999, 0.0)):
        right = check_one({"kind": "classification-loss", "loss": 0.3, "auc": auc}).right
        assert float(right.split()[-1]) == pytest.approx(loss, abs=0.002)


def test_a_contrastive_loss_needs_positives():
    with pytest.raises(InvalidSettings, match="a positive"):
        check_one({"kind": "contrastive-loss", "claimed": [1], "classes": 8, "batch": 8})
