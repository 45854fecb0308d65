"""What only a run or a source decides."""

import pytest

from forerun.audit.check import audit, check_one
from forerun.audit.claims import claims_from
from forerun.errors import InvalidSettings
from forerun.verify.test_compare import measurement

A100 = {"gpu": "a100-40gb"}


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"kind": "measurement", "claimed": "x"}, "unsupported"),
        ({"kind": "measurement", "claimed": "x", "evidence": "run 1"}, "consistent"),
        ({"kind": "speed-up", "claimed": "2-3x", "by": "precision", "before": "float32", "after": "bfloat16"}, "unsupported"),
        ({"kind": "speed-up", "claimed": "2-3x", "by": "precision", "before": "float32", "after": "bfloat16", "evidence": "r"}, "consistent"),
        ({"kind": "speed-up", "claimed": "20x", "by": "precision", "before": "float32", "after": "bfloat16"}, "impossible"),
        ({"kind": "speed-up", "claimed": "6x", "by": "device", "before": "a100-40gb", "after": "l4"}, "impossible"),
        ({"kind": "speed-up", "claimed": "1.3x", "share_of_time": 0.1}, "impossible"),
        ({"kind": "speed-up", "claimed": "1.05x", "share_of_time": 0.1, "evidence": "r"}, "consistent"),
        ({"kind": "outcome", "claimed": "2-3", "recorded": 2.5, "source": "x"}, "consistent"),
        ({"kind": "outcome", "claimed": "2-3", "recorded": 4, "source": "x"}, "wrong"),
        ({"kind": "outcome", "claimed": "2-3", "recorded": "2-9", "source": "x"}, "unsupported"),
        ({"kind": "outcome", "unit": "time", "claimed": "< 2 h", "recorded": "90 min", "source": "x"}, "consistent"),
        ({"kind": "outcome", "claimed": "before", "recorded": "after", "source": "x"}, "wrong"),
        ({"kind": "alive", "mechanism": "m", "source": "x"}, "unsupported"),
        ({"kind": "alive", "mechanism": "m", "effect": 0.02, "source": "x"}, "consistent"),
        ({"kind": "alive", "mechanism": "m", "effect": 1e-9, "source": "x"}, "wrong"),
        ({"kind": "search-space", "parameters": {"a": "live", "b": "dead"}}, "wrong"),
        ({"kind": "search-space", "parameters": {"a": "live"}}, "consistent"),
        ({"kind": "coverage", "claimed": 3, "checked": 3, "source": "x"}, "consistent"),
        ({"kind": "coverage", "claimed": 3, "checked": 2, "source": "x"}, "wrong"),
        ({"kind": "rate", "flops": 2e12, "seconds": 1, "peak_flops_per_second": 1e12}, "impossible"),
        ({"kind": "rate", "flops": 4e11, "seconds": 1, "peak_flops_per_second": 1e12, "claimed": "40%"}, "consistent"),
        ({"kind": "rate", "flops": 4e11, "seconds": 1, "peak_flops_per_second": 1e12, "claimed": "60%"}, "wrong"),
    ],
)  # fmt: skip
def test_evidence(check, verdict):
    finding = check_one(check, A100)
    assert finding.verdict == verdict, finding


FIGURES = [
    ({"quantity": "auc", "claimed": 0.95}, "consistent"),
    ({"quantity": "auc", "claimed": 0.99}, "wrong"),
    ({"quantity": "step.seconds", "claimed": "3 s", "unit": "time"}, "consistent"),
    ({"quantity": "step.seconds", "claimed": "~2 s", "unit": "time"}, "wrong"),
    ({"quantity": "memory.peak_allocated_bytes", "claimed": "1 KB", "unit": "size"}, "consistent"),
]


@pytest.mark.parametrize(("check", "verdict"), FIGURES)
def test_a_figure_of_a_run_is_what_the_ledger_says(check, verdict):
    assert figure(**check).verdict == verdict


def figure(**check):
    content = {"document": "d", "claims": [{"quote": "q", "kind": "run-figure", "run": "last", **check}]}
    (claim,) = audit(claims_from(content), measurer=lambda run: measurement(metrics={"auc": 0.95})).claims
    return claim.findings[0]


def test_a_figure_that_the_run_does_not_have():
    with pytest.raises(InvalidSettings, match="no 'auk'. Nearest: auc"):
        figure(quantity="auk", claimed=1)
    with pytest.raises(InvalidSettings, match="needs the ledger"):
        check_one({"kind": "run-figure", "run": "last", "quantity": "auc", "claimed": 1})


def test_a_miss_says_by_how_much():
    finding = check_one({"kind": "outcome", "unit": "time", "claimed": "25 min", "recorded": "50 min", "source": "x"})
    assert "2.00 times the claim" in finding.said
