"""Deadlines, budgets and `--allow` as people type them."""

import pytest

from forerun.errors import InvalidSettings
from forerun.plan.limits import allowed, budget_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30min", 1800), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5 d", 129600)]
)
def test_deadlines(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["2", "", "h", "2 weeks", "0h", "-1h", "2h then"])
def test_what_is_no_deadline(text):
    with pytest.raises(InvalidSettings, match="--deadline wants a time above zero with its unit"):
        seconds_of(text)


@pytest.mark.parametrize("dollars", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_budget(dollars):
    with pytest.raises(InvalidSettings, match="--budget wants dollars above zero"):
        budget_of(dollars)


def test_words_that_widen_the_search():
    assert allowed(["method,global-batch", "method"]) == ["method", "global-batch"]
    with pytest.raises(InvalidSettings, match=r"--allow takes method and global-batch; found 'methods'"):
        allowed(["methods"])
