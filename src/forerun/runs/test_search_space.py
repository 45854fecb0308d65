"""What a user may have searched beside a recipe's own space, and why not the rest."""

import pytest

from forerun.api import find_device
from forerun.errors import InvalidSettings
from forerun.recipes.text_classifier.recipe import SETTINGS
from forerun.runs.search_space import NEVER_SEARCHED, Dimension, asked_dimensions

A100 = find_device("a100-40gb")


def test_a_number_format_is_searched_where_it_is_asked_for_and_runs():
    (dimension,) = asked_dimensions(["precision=fp32,bf16-mixed"], SETTINGS, A100)
    assert (dimension.name, dimension.values) == ("precision", ("fp32", "bf16-mixed"))
    with pytest.raises(InvalidSettings, match="bf16-mixed would not compare.*time is what a number format"):
        asked_dimensions(["precision=fp16-mixed,bf16-mixed"], SETTINGS, find_device("t4"))


@pytest.mark.parametrize("path", NEVER_SEARCHED)
def test_what_makes_scores_that_do_not_compare_is_refused_with_the_reason(path):
    with pytest.raises(InvalidSettings, match=NEVER_SEARCHED[path]):
        asked_dimensions([f"{path}=1,2"], SETTINGS, A100)


@pytest.mark.parametrize("option", ["precision=fp32", "precision=fp32,fp32", "precision", "optimizer.name=adamw,no"])
def test_one_value_or_a_wrong_one_is_refused(option):
    with pytest.raises(InvalidSettings):
        asked_dimensions([option], SETTINGS, A100)


def test_the_nearest_value_is_the_setting_an_end_or_the_last():
    size, rate = Dimension(name="batch.micro_batch_size", values=(4, 8)), Dimension(name="x", low=0.1, high=0.5)
    assert (size.nearest(4), size.nearest(64)) == (4, 8)
    assert (rate.nearest(0.2), rate.nearest(9), rate.nearest(0)) == (0.2, 0.5, 0.1)
