import json

import pytest

from forerun.data.byte_pairs import ANY_SCRIPT, by_words
from forerun.data.chat_tokens import PIECES
from forerun.errors import BadData, InvalidSettings
from forerun.hardware.catalogue import device
from forerun.own.experiment import criteria_for, load_experiment
from forerun.own.facts import ASSETS
from forerun.own.tokens import cutting_rule
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


def test_a_run_from_before_goes_on_with_its_own_tokenizer(tmp_path):
    """Byte pairs were learned within words of A to Z until 2026-11-28; learned anew, their ids would mean other texts."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"Größe {n} ist groß", "label": n % 2}) + "\n" for n in range(60)))
    settings = settings_from({
        "name": "t", "workload": "sequence-classification", "model": {"name": "tiny-bert"},
        "data": {"source": str(texts)}, "batch": {"micro_batch_size": 2, "sequence_length": 32},
    })  # fmt: skip
    today = load_experiment(settings)
    today.before(None, tmp_path / "run")
    file = tmp_path / "run" / ASSETS / "tokenizer.json"
    rules = [json.loads(by_words(pieces).__getstate__()) for pieces in (ANY_SCRIPT, PIECES)]
    assert json.loads(file.read_text())["pre_tokenizer"] == rules[0]
    file.write_text(json.dumps({**json.loads(file.read_text()), "pre_tokenizer": rules[1]}))
    with pytest.raises(InvalidSettings, match="run: a run goes on with the tokenizer that it began with"):
        today.before(None, tmp_path / "run")
    again = load_experiment(today.settings, run_folder=tmp_path / "run")
    again.before(None, tmp_path / "run")
    assert cutting_rule(tmp_path / "run" / ASSETS) == rules[1]
    again.save_assets(tmp_path / "export")
    assert cutting_rule(tmp_path / "export") == rules[1]
    load_experiment(settings).save_assets(tmp_path / "fresh")
    assert cutting_rule(tmp_path / "fresh") == rules[0]


@pytest.mark.parametrize(
    ("workload", "metric", "quantity", "comparison"),
    [
        ("sequence-classification", None, "macro_f1", "above"), ("sequence-classification", "mcc", "mcc", "above"),
        ("sequence-classification", "ece", "macro_f1", "above"), ("causal-lm", "perplexity", "perplexity", "below"),
        ("causal-lm", "accuracy", "loss", "below"), ("preference", "margin", "accuracy", "above"),
        ("token-classification", "recall", "recall", "above"),
    ],
)  # fmt: skip
def test_a_run_is_judged_by_the_score_that_was_asked_for(workload, metric, quantity, comparison):
    content = {"name": "a", "workload": workload, "model": {"name": "tiny-bert"}, "evaluation": {"metric": metric}}
    first = criteria_for(settings_from(content))[0]
    assert (first.quantity, first.comparison, first.bound) == (quantity, comparison, f"*.{quantity}")
