from forerun.settings.load import settings_from
from forerun.settings.micro_batches import with_micro_batches


def test_nothing_but_the_number_is_another():
    settings = settings_from({"name": "a", "workload": "causal-lm", "model": {"name": "gpt2"}, "data": {"examples": 9}})
    other = with_micro_batches(settings, 7)
    assert other.batch.gradient_accumulation_steps == 7
    assert settings.batch.gradient_accumulation_steps == 1
    assert with_micro_batches(other, 1) == settings
