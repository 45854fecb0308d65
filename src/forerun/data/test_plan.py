"""Plans from settings: counts add up, and stated assumptions appear exactly when something was assumed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.data.plan import BatchPlan, BatchShape, plan_from_settings
from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from


def settings(**sections):
    return settings_from({"name": "p", "workload": "causal-lm", "model": {"name": "gpt2"}, **sections})


def test_the_length_of_a_run_must_be_known():
    with pytest.raises(InvalidSettings, match=r"data\.examples"):
        plan_from_settings(settings())


def test_max_steps_gives_the_length():
    plan = plan_from_settings(settings(schedule={"max_steps": 7}, batch={"micro_batch_size": 2}))
    assert (plan.samples, plan.steps) == (14, 7)


@given(st.integers(1, 5000), st.integers(1, 32), st.integers(1, 8))
def test_fixed_padding_covers_every_sample_once(examples, size, accumulation):
    size = min(size, examples)
    batch = {"micro_batch_size": size, "gradient_accumulation_steps": accumulation, "sequence_length": 64}
    plan = plan_from_settings(settings(data={"examples": examples}, batch=batch))
    assert sum(shape.size * number for shape, number in plan.shapes) == examples
    assert plan.steps == -(-examples // (size * accumulation))
    assert plan.padded_tokens == examples * 64
    assert not plan.assumptions


def test_longest_of_a_batch_is_longer_than_the_mean_and_at_most_the_limit():
    data = {"examples": 100, "mean_tokens": 100}
    one = plan_from_settings(settings(data=data, batch={"micro_batch_size": 1, "padding": "longest"}))
    many = plan_from_settings(settings(data=data, batch={"micro_batch_size": 16, "padding": "longest"}))
    short = [s.length for s, n in one.shapes if n][0]
    long = [s.length for s, n in many.shapes if n][0]
    assert 95 <= short <= 100 < long <= 512
    assert many.longest == BatchShape(16, 512), "memory peaks at the full length, whatever the mean"
    assert many.assumptions


def test_packing_shortens_the_epoch():
    data = {"examples": 1000, "mean_tokens": 64}
    plan = plan_from_settings(settings(data=data, batch={"sequence_length": 512, "padding": "packed"}))
    assert plan.micro_batches == 125


def test_longest_shape_is_by_tokens():
    shapes = [BatchShape(8, 100), BatchShape(4, 300), BatchShape(1, 512)]
    assert BatchPlan.count(shapes, steps=3, samples=13, tokens=1).longest == BatchShape(4, 300)
