import json

import pytest

from forerun.errors import BadData
from forerun.hardware.catalogue import device
from forerun.own.experiment import load_experiment
from forerun.settings.load import settings_from


def test_a_forecast_of_rows_that_are_not_here_says_what_to_do_without_them():
    settings = settings_from(
        {"name": "a", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"source": "gone.jsonl"}}
    )
    with pytest.raises(BadData, match=r"gone.jsonl is not on this machine.* set data.examples .* data.mean_tokens"):
        load_experiment(settings, lengths_only=True)


def test_settings_of_a_run_read_the_same_rows_again(tmp_path):
    """Texts are packed into fewer samples, and a run's settings are read again by what predicts or exports."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"row {n} says what it says " * 3}) + "\n" for n in range(60)))
    settings = settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"source": str(texts)},
        "batch": {"micro_batch_size": 2, "sequence_length": 256},
    })  # fmt: skip
    first = load_experiment(settings)
    again = load_experiment(first.settings)
    assert again.settings == first.settings
    assert again.evaluation_examples == first.evaluation_examples < first.settings.evaluation.examples
    assert first.known_times(device("t4")).evaluation_examples == first.evaluation_examples
