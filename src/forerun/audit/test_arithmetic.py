"""Sums, products, ratios and changes, by hand."""

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings


@pytest.mark.parametrize(
    ("check", "verdict", "right"),
    [
        ({"kind": "sum", "parts": [1, 2, 3], "total": 6}, "consistent", "6"),
        ({"kind": "sum", "parts": [1, 2, 3], "total": 7}, "wrong", "6"),
        ({"kind": "sum", "parts": {"a": "2-3", "b": 4}, "total": "~6-7"}, "consistent", "6 to 7"),
        ({"kind": "sum", "parts": {"a": "2-3", "b": 4}, "total": "6.5-9"}, "unsupported", "6 to 7"),
        ({"kind": "sum", "unit": "time", "parts": ["30 s", "1 min"], "total": "90 s"}, "consistent", "90.0 s"),
        ({"kind": "sum", "unit": "size", "parts": ["1 GB", "1 GB"], "total": "3 GB"}, "wrong", "2.00 GB"),
        ({"kind": "sum", "parts": [10, 4], "counts": [2, 0.5], "total": 22}, "consistent", "22"),
        ({"kind": "product", "factors": [16, 8], "claimed": 128}, "consistent", "128"),
        ({"kind": "product", "factors": [16, 8], "claimed": 127}, "wrong", "128"),
        ({"kind": "ratio", "numerator": 3, "denominator": 2, "claimed": 1.5}, "consistent", "1.5"),
        ({"kind": "ratio", "numerator": 3, "denominator": 2, "claimed": 2}, "wrong", "1.5"),
        (
            {"kind": "ratio", "unit": "time", "numerator": "4-5 h", "denominator": "1 h", "claimed": "4.8-7x"},
            "unsupported",
            "4 to 5",
        ),
        ({"kind": "change", "before": 100, "after": 50, "said": "smaller", "factor": 2}, "consistent", "2x"),
        ({"kind": "change", "before": 100, "after": 50, "said": "smaller", "factor": 3}, "wrong", "2x"),
        ({"kind": "change", "before": 100, "after": 130, "said": "smaller"}, "wrong", "+30.0 %"),
        ({"kind": "change", "before": 100, "after": 101, "said": "same"}, "consistent", "same"),
        ({"kind": "agree", "quantity": "steps", "stated": {"here": "~100", "there": 98}}, "consistent", "98 (there)"),
        ({"kind": "agree", "quantity": "steps", "stated": {"here": 100, "there": 98}}, "wrong", "100 (here)"),
        ({"kind": "agree", "quantity": "precision", "stated": {"here": "bf16", "there": "BF16"}}, "consistent", "bf16"),
    ],
)
def test_arithmetic(check, verdict, right):
    finding = check_one(check)
    assert finding.verdict == verdict
    assert right in finding.right


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ({"kind": "sum", "parts": [1, 2], "counts": [1], "total": 3}, "counts"),
        ({"kind": "sum", "parts": [1, "soon"], "total": 3}, r"parts\[1\]"),
        ({"kind": "ratio", "numerator": 1, "denominator": 0, "claimed": 1}, "denominator"),
    ],
)
def test_nonsense_names_claim_and_field(check, words):
    with pytest.raises(InvalidSettings, match=words) as error:
        check_one(check)
    assert f"Claim 1, check {check['kind']}" in str(error.value)
