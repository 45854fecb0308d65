import re
import tomllib
import warnings
from pathlib import Path

import pytest

from forerun.errors import UnknownModel
from forerun.models import rows
from forerun.models.rows import architecture, architectures, count_text, hub_id, row_of, searched_rows
from forerun.spelling import NameNote


@pytest.mark.parametrize(
    "text", ["llama 3 8b", "Llama-3-8B", "GPT2 medium", "mistral 7b", "mixtral 8x7b", "granite 4.0-h-tiny"]
)
def test_a_model_by_its_own_name_is_taken_in_silence(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert architecture(text).name == text.lower().replace(" ", "-")


@pytest.mark.parametrize(
    ("text", "name"), [("gpt-oss model 20b openai", "gpt-oss-20b"), ("codebert base model", "codebert")]
)
def test_words_that_mean_one_model_are_taken_and_said(text: str, name: str):
    with pytest.warns(NameNote, match=f"taken as {name} \\("):
        assert architecture(text).name == name


def test_words_that_mean_several_models_are_an_error_that_lists_them():
    with pytest.raises(
        UnknownModel, match=r"can be several models: .*llama-2-7b \(6.74B, meta-llama/llama-2-7b-hf.* and \d+ more"
    ):
        architecture("llama")


def test_a_miss_names_three():
    for text in ("llama 3 9b", "zzz", ""):
        with pytest.raises(UnknownModel) as raised:
            architecture(text)
        assert str(raised.value).partition("Nearest: ")[2].count(", ") == 2


@pytest.mark.parametrize(
    ("identity", "positions"),
    [
        ("meta-llama/Llama-3.1-8B", 131072), ("meta-llama/Llama-3.1-70B", 131072), ("meta-llama/Meta-Llama-3-8B", 8192),
        ("microsoft/Phi-3.5-mini-instruct", 131072), ("ibm-granite/granite-3.1-8b-base", 131072),
    ],
)  # fmt: skip
def test_ids_of_one_size_with_other_positions_are_other_rows(identity: str, positions: int):
    assert architecture(identity).config["max_position_embeddings"] == positions


def test_words_of_a_tuned_version_reach_its_own_weights():
    with pytest.warns(NameNote, match=r"taken as llama-3.1-8b \(8.03B, weights of meta-llama/.*-8b-instruct\)"):
        assert architecture("llama 3.1 8b instruct").name == "llama-3.1-8b"
    assert hub_id("llama 3.1 8b instruct") == "meta-llama/meta-llama-3.1-8b-instruct"
    assert hub_id("llama 3.1 8b") == "meta-llama/meta-llama-3.1-8b"
    assert hub_id("deepseek r1 distill llama 8b") == "deepseek-ai/deepseek-r1-distill-llama-8b"


def test_no_two_rows_of_the_files_have_one_name():
    folder = Path(rows.__file__).with_name("architectures")
    tables = [tomllib.loads(path.read_text())["architecture"] for path in folder.glob("*.toml")]
    names = [row["name"] for table in tables for row in table]
    assert len(names) == len(set(names)) == len(architectures())


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"), ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", "qwen2.5-7b"),
        ("unsloth/Llama-3.2-1B-unsloth-bnb-4bit", "llama-3.2-1b"),
    ],
)  # fmt: skip
def test_a_copy_packed_in_4_bits_is_the_model_that_it_is_of(identity: str, name: str):
    with pytest.warns(NameNote, match="packed in 4 bits: quantization: nf4"):
        assert row_of(identity) == architecture(name)
    assert row_of("somebody/unheard-of-bnb-4bit") is None


def test_toys_ids_and_folders_are_never_guessed(tmp_path, monkeypatch):
    with pytest.warns(NameNote, match="taken as tinyllama-1.1b"):
        assert row_of("tiny llama").name != "tiny-llama"
    assert row_of("somebody/llama-3-8b") is None
    (tmp_path / "mistral").mkdir()
    monkeypatch.chdir(tmp_path)
    assert row_of("mistral") is None
    assert hub_id("mistral") == "mistral"


@pytest.mark.parametrize("text", ["qwen3:8b", "Qwen/Qwen3-8B", "https://huggingface.co/Qwen/Qwen3-8B"])
def test_a_search_has_the_model_that_is_meant_first(text: str):
    assert searched_rows(text)[0][0].name == "qwen3-8b"


def test_hub_ids_stay_as_they_are_typed():
    assert hub_id("qwen/Qwen2.5-7B-Instruct") == "qwen/Qwen2.5-7B-Instruct"
    assert hub_id("llama-3-8b") == "meta-llama/meta-llama-3-8b"
    assert hub_id("llama 3 8b") == "meta-llama/meta-llama-3-8b"
    assert hub_id("my-model") == "my-model"


@pytest.mark.parametrize(
    ("number", "text"),
    [(124_439_808, "124M"), (8_030_261_248, "8.03B"), (12_345, "12,345"), (1_026_408_209_408, "1.03T")],
)
def test_counts_as_model_cards_print_them(number: int, text: str):
    assert count_text(number) == text


@pytest.mark.parametrize(
    ("identity", "name"),
    [("facebook/vit-mae-base", "vit-base-patch16-224"), ("nvidia/segformer-b2-finetuned-ade-512-512", "mit-b2"),
     ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"), ("microsoft/layoutlmv3-base", "layoutlmv3-base"),
     ("MIT/ast-finetuned-audioset-10-10-0.4593", "ast-finetuned-audioset-10-10-0.4593")],
)  # fmt: skip
def test_ids_of_images_documents_and_sound_have_the_row_of_what_is_trained(identity: str, name: str):
    row = row_of(identity)
    assert row is not None
    assert row.name == name


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("lama 3 8b", "llama-3-8b"), ("qwenn2.5 7b", "qwen2.5-7b"), ("mistal 7b", "mistral-7b"), ("gtp2", "gpt2"),
        ("gema 2 9b", "gemma-2-9b"), ("distilbet", "distilbert-base-uncased"), ("tinylama", "tinyllama-1.1b"),
        ("phi-4 mnii", "phi-4-mini"), ("roberat base", "roberta-base"), ("deepsek r1", "deepseek-r1"),
        ("gpt 2 meduim", "gpt2-medium"), ("llama 4 scuot", "llama-4-scout-17b-16e"), ("qwen 3 8", "qwen3-8b"),
    ],
)  # fmt: skip
def test_a_typing_error_is_answered_with_what_was_meant(text: str, first: str):
    with pytest.raises(UnknownModel, match=f"Nearest: {re.escape(first)},"):
        architecture(text)


def test_a_number_within_a_word_of_an_id_is_none_of_its_sizes():
    """The 8 of GSM8K: "qwen 3 8" was taken as the row of qwen3-1.7b-gsm8k-sft."""
    assert row_of("qwen 3 8") is None
