"""Goat's run at full size: what the shipped YAML says, and the forecast against what its authors report."""

from pathlib import Path

import pytest

from forerun.api import find_device, forecast_settings
from forerun.recipes.arithmetic.recipe import load_experiment
from forerun.settings.load import load_settings

FULL = Path(__file__).with_name("full.yaml")


def test_the_profile_is_goats():
    """16 x 8 rows a step over 304,000 make 2,375 steps and 48 checkpoints (origin 002), r = 64 on q, k, v and o."""
    settings = load_settings(FULL)
    rows = 304 * settings.recipe["per_cell"]
    assert rows == 304_000
    assert settings.global_batch_size == 128
    assert settings.total_steps(rows) == 2_375
    assert -(-2_375 // settings.checkpoints.every_steps) == 48
    assert (settings.quantization, settings.adapter.rank, settings.batch.sequence_length) == ("int8", 64, 512)


@pytest.mark.literature
def test_rows_are_a_quarter_of_what_the_origin_says():
    """It takes 200 to 300 tokens a row; a tenth of the rows gives the mean to a token."""
    settings = load_settings(FULL, ["recipe.per_cell=20"])
    plan = load_experiment(settings, lengths_only=True).plan
    assert plan.samples == 304 * 20
    assert 64 < plan.tokens / plan.samples < 70
    assert 90 < plan.padded_tokens / plan.samples < 97
    assert plan.longest.length <= 112


@pytest.mark.slow
@pytest.mark.literature
def test_the_forecast_on_an_a10_is_what_goats_authors_took():
    """100,000 sums of 8 and 8 digits: about 1.5 hours on an A10 in the paper (Liu & Low 2023), less than 2 in the
    repository; 782 steps, timed from a sample of the rows.
    """
    only_eight = ["recipe.max_digits=8", "recipe.starts=[8]", "recipe.per_cell=2000", "schedule.epochs=50"]
    forecast = forecast_settings(load_settings(FULL, only_eight), find_device("a10"))
    hours = forecast.run.seconds
    assert forecast.run.total_steps == 800  # 16 of 128 an epoch; the last one of each is not full
    assert hours.optimistic / 3600 < 1.5 < hours.conservative / 3600
