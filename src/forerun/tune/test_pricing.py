import json

import pytest

from forerun.api import request_of
from forerun.hardware.catalogue import device
from forerun.recipes.text_classifier import recipe as text_classifier
from forerun.recipes.text_classifier.test_search import SMALL
from forerun.records import Range
from forerun.settings.load import settings_from
from forerun.tune.pricing import PROCESS_SECONDS, Pricer, TrialCosts


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"text": f"text {n} " + "word " * (n % 9), "label": "ab"[n % 2]} for n in range(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return settings_from(
        {
            "name": "t", "workload": "text-classifier", "model": {"name": "text-encoder", "config": SMALL},
            "batch": {"micro_batch_size": 8, "sequence_length": 64, "padding": "bucketed"}, "data": {"source": str(path)},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def pricer():
    return Pricer(lambda settings: request_of(settings, device("t4"), None), text_classifier)


def price(pricer, base, *overrides, **more):
    return pricer.price(settings_from(base.model_dump(), overrides), TrialCosts(), **more)


@pytest.mark.medium
def test_a_step_is_traced_once_and_everything_else_is_forecast_anew(pricer, base):
    first = price(pricer, base)
    alike = price(pricer, base, "recipe.loss=focal", "optimizer.learning_rate=0.01", "schedule.epochs=3")
    assert not alike.is_traced
    assert alike.pricing_seconds < 1
    assert alike.forecast.run.total_steps == 3 * first.forecast.run.total_steps
    assert alike.forecast.step.seconds == first.forecast.step.seconds
    assert price(pricer, base, "batch.micro_batch_size=16").is_traced
    doubled = price(pricer, base, "recipe.augmentation.policies=[{method: r-drop}]")
    assert doubled.is_traced
    assert doubled.forecast.step.phases.backward_seconds > 1.5 * first.forecast.step.phases.backward_seconds


def test_a_known_step_is_forecast_as_a_traced_one(pricer, base):
    again = Pricer(pricer.ask, text_classifier)
    untraced = price(pricer, base, "recipe.pooling=cls", "recipe.label_smoothing=0.1")
    traced = price(again, base, "recipe.pooling=cls", "recipe.label_smoothing=0.1")
    assert untraced.forecast.memory == traced.forecast.memory
    assert untraced.forecast.run.seconds.expected == pytest.approx(traced.forecast.run.seconds.expected)


def test_processes_and_folds_are_paid_for(pricer, base):
    one = price(pricer, base)
    folded = Pricer(pricer.ask, text_classifier, folds=4, step_models=pricer.step_models)
    assert one.seconds.expected == pytest.approx(one.forecast.run.seconds.expected + PROCESS_SECONDS)
    assert price(folded, base).seconds.expected == pytest.approx(4 * one.seconds.expected)


def test_a_range_is_earned():
    stated = Range(optimistic=90, expected=100, conservative=110)
    assert TrialCosts(ratios=(2.0,) * 4).widened(stated) == stated
    wide = TrialCosts(ratios=(0.5, 0.9, 1.0, 1.1, 1.2, 2.0)).widened(stated)
    assert (wide.optimistic, wide.expected, wide.conservative) == pytest.approx((70, 100, 160))
    assert TrialCosts(ratios=(1.0,) * 9).widened(stated) == stated
    assert TrialCosts(overheads=(3.0, 5.0, 9.0)).around() == 5


def test_what_needs_as_much_as_a_trial_that_ran_out_of_memory_is_refused(pricer, base):
    limit = price(pricer, base).forecast.memory.device_bytes.expected
    assert price(pricer, base).refusal is None
    assert price(pricer, base).excess < 0
    assert "ran out of memory" in (price(pricer, base, limit_bytes=limit).refusal or "")
    assert price(pricer, base, limit_bytes=limit + 1).refusal is None


def test_what_does_not_fit_is_refused_with_both_numbers(pricer, base):
    wide = "model.config={width: 8192, heads: 4, feed_forward: 262144, layers: 4}"
    refusal = price(pricer, base, wide).refusal
    assert refusal is not None
    assert "t4 has 15" in refusal or "t4 has 14" in refusal
