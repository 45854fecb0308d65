import pytest

from forerun.errors import BadData
from forerun.own.experiment import load_experiment
from forerun.settings.load import settings_from


def test_a_forecast_of_rows_that_are_not_here_says_what_to_do_without_them():
    settings = settings_from(
        {"name": "a", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"source": "gone.jsonl"}}
    )
    with pytest.raises(BadData, match=r"gone.jsonl is not on this machine.* set data.examples .* data.mean_tokens"):
        load_experiment(settings, lengths_only=True)
