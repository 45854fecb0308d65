"""Deadlines, budgets and `--allow` as people type them."""

import pytest

from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.plan.limits import allowed, budget_of, priced, seconds_of


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


def test_prices_of_ones_own():
    a10, t4 = priced([device("a10"), device("t4")], ["T4 = 0.2"])
    assert (a10, t4.price_per_hour, t4.price_source) == (device("a10"), 0.2, "--price")


@pytest.mark.parametrize("text", ["t4", "t4=", "t4=free", "t4=0", "t4=-1", "t4=inf"])
def test_what_is_no_price(text):
    with pytest.raises(InvalidSettings, match="--price wants GPU=DOLLARS"):
        priced([device("t4")], [text])


def test_a_price_of_a_gpu_that_is_not_compared():
    with pytest.raises(InvalidSettings, match="'a10' is none of the GPUs compared"):
        priced([device("t4")], ["a10=1"])
