"""What only a run or a source decides."""

import pytest

from forerun.audit.check import check_one

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
    found = check_one(check, A100)
    assert found.verdict == verdict, found


def test_a_miss_says_by_how_much():
    found = check_one({"kind": "outcome", "unit": "time", "claimed": "25 min", "recorded": "50 min", "source": "x"})
    assert "2.00 times the claim" in found.said
