import warnings

import pytest

from forerun.errors import UnknownModel
from forerun.models.rows import architecture, count_text, hub_id, row_of
from forerun.spelling import NameNote


@pytest.mark.parametrize("text", ["llama 3 8b", "Llama-3-8B", "GPT2 medium", "mistral 7b", "mixtral 8x7b"])
def test_a_model_by_its_own_name_is_taken_in_silence(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert architecture(text).name == text.lower().replace(" ", "-")


@pytest.mark.parametrize(("text", "name"), [("llama3.1 8b", "llama-3-8b"), ("codebert base model", "codebert")])
def test_words_that_mean_one_model_are_taken_and_said(text: str, name: str):
    with pytest.warns(NameNote, match=f"taken as {name} \\("):
        assert architecture(text).name == name


def test_words_that_mean_several_models_are_an_error_that_lists_them():
    with pytest.raises(UnknownModel, match=r"can be several models: .*llama-2-7b \(6.74B, meta-llama/llama-2-7b-hf\)"):
        architecture("llama")


def test_a_miss_names_three_and_what_tuned_versions_are():
    with pytest.raises(UnknownModel, match=r"Nearest: llama-3-8b, .*tuned for instructions has its base's sizes"):
        architecture("llama 3 8b instruct")
    with pytest.raises(UnknownModel, match="Nearest: "):
        architecture("zzz")


def test_toys_ids_and_folders_are_never_guessed(tmp_path, monkeypatch):
    assert row_of("tiny llama") is None or row_of("tiny llama").name != "tiny-llama"
    assert row_of("somebody/llama-3-8b") is None
    (tmp_path / "mistral").mkdir()
    monkeypatch.chdir(tmp_path)
    assert row_of("mistral") is None
    assert hub_id("mistral") == "mistral"


def test_hub_ids_stay_as_they_are_typed():
    assert hub_id("qwen/Qwen2.5-7B-Instruct") == "qwen/Qwen2.5-7B-Instruct"
    assert hub_id("llama-3-8b") == "meta-llama/meta-llama-3-8b"
    assert hub_id("llama 3 8b") == "meta-llama/meta-llama-3-8b"
    assert hub_id("my-model") == "my-model"


@pytest.mark.parametrize(("number", "text"), [(124_439_808, "124M"), (8_030_261_248, "8.03B"), (12_345, "12,345")])
def test_counts_as_model_cards_print_them(number: int, text: str):
    assert count_text(number) == text
