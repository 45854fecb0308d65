"""Learning-rate rules, worked out by hand, and samples that stay what they were."""

import pytest

from forerun.plan.scaling import describe_rule, rate_factor, with_global_batch
from forerun.settings.load import settings_from

ORIGINAL = settings_from({
    "name": "r", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "optimizer": {"learning_rate": 1e-4},
    "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 4, "sequence_length": 32},
    "schedule": {"max_steps": 1000, "warmup_steps": 100},
})  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("adamw", 2.0), ("adamw-8bit", 2.0), ("sgd", 4.0), ("lion", 1.0), ("muon", 1.0)]
)
def test_the_rate_of_four_times_the_batch(optimizer, factor):
    assert rate_factor(optimizer, 4) == factor


def test_samples_of_warm_up_and_run_are_kept():
    larger = with_global_batch(ORIGINAL, ORIGINAL, 64)
    assert larger.global_batch_size == 64
    assert larger.optimizer.learning_rate == pytest.approx(2e-4)
    assert larger.schedule.warmup_steps * 64 == 100 * 16
    assert larger.schedule.max_steps == 250


def test_the_rule_is_named_and_worked_out():
    rule = describe_rule(ORIGINAL, with_global_batch(ORIGINAL, ORIGINAL, 64))
    assert "square-root" in rule
    assert "2205.10287" in rule
    assert "0.0001 × 2 = 0.0002" in rule
    assert "stays 0.0001" in describe_rule(ORIGINAL, ORIGINAL)
    sgd = settings_from({**ORIGINAL.model_dump(), "optimizer": {"name": "sgd", "learning_rate": 0.1}})
    assert "linear" in describe_rule(sgd, with_global_batch(sgd, sgd, 32))
    lion = settings_from({**ORIGINAL.model_dump(), "optimizer": {"name": "lion", "learning_rate": 1e-4}})
    assert "no scaling rule is known for lion" in describe_rule(lion, with_global_batch(lion, lion, 32))
