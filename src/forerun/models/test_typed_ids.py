import pytest

from forerun.errors import UnknownModel
from forerun.models.catalogue import model_config
from forerun.models.rows import architecture, hub_id, row_of
from forerun.models.typed_ids import packing, plain_id, unpacked
from forerun.spelling import NameNote


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"), ("hf.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", "Qwen/Qwen3-8B"), ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("https://huggingface.co/a/b/blob/v1.0/config.json?raw=1", "a/b@v1.0"), ("Qwen/Qwen3-8B@main", "Qwen/Qwen3-8B"),
        ("a/b@v2", "a/b@v2"), ("./folder", "./folder"), ("gpt2", "gpt2"),
    ],
)  # fmt: skip
def test_the_address_of_a_page_is_the_id_on_it(text: str, identity: str):
    assert plain_id(text) == identity


def test_an_address_reaches_the_row_and_its_weights():
    assert row_of("https://huggingface.co/Qwen/Qwen3-8B") == architecture("qwen3-8b")
    assert hub_id("https://huggingface.co/Qwen/Qwen3-8B/tree/main") == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("text", "how", "rest"),
    [
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "GPTQ", "llama-2-7b-chat"), ("unsloth/Qwen3-8B-GGUF", "GGUF", "qwen3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "GPTQ", "qwen2.5-7b-instruct"), ("a/Phi-4-4bit", "4BIT", "phi-4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "FP8", "llama-3.3-70b-instruct"),
        ("llama-3-8b-instruct.Q4_K_M.gguf", "Q4", "llama-3-8b-instruct"),
        ("llama3.1:8b-instruct-q4_K_M", "Q4", "llama3.1:8b-instruct"), ("unsloth/llama-3-8b-bnb-4bit", "", "llama-3-8b"),
        ("Qwen/Qwen3-8B", "", "qwen3-8b"), ("ibm/granite-4.0-h-tiny", "", "granite-4.0-h-tiny"),
    ],
)  # fmt: skip
def test_how_a_copy_is_packed_shows_in_its_name(text: str, how: str, rest: str):
    assert (packing(text).partition("_")[0], unpacked(text)) == (how, rest)


@pytest.mark.parametrize(
    ("text", "origin"), [("Mistral-7B-v0.3.Q4_K_M.gguf", "mistral-7b-v0.3"), ("qwen3:8b-q8_0", "qwen3-8b")]
)
def test_a_packed_copy_is_refused_with_what_it_was_made_from(text: str, origin: str):
    with pytest.raises(UnknownModel, match=f"packed for running .* was made from: .*{origin}"):
        model_config(text, {}, "auto")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("phi4-mini 3.8b", "phi-4-mini"), ("deepseek-r1:671b", "deepseek-r1"), ("deepseek-v2:16b", "deepseek-v2-lite"),
        ("granite4 tiny", "granite-4.0-h-tiny"), ("tiny llama", "tinyllama-1.1b"), ("llama 30b", "llama-33b"),
        ("unsloth/gpt-oss-20b", "gpt-oss-20b"), ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "qwen3-8b"),
    ],
)  # fmt: skip
def test_sizes_spaces_and_copies_that_no_name_has_are_taken_and_said(text: str, name: str):
    with pytest.warns(NameNote, match=f"taken as {name}[ ,.]"):
        assert architecture(text).name == name


@pytest.mark.parametrize(
    "text", ["llama 3 9b", "llama2-8b", "somebody/gpt-oss-20b", "mistrl 7b", "unsloth/unheard-of", "a b " * 5000]
)
def test_what_no_size_and_no_copy_explains_stays_unknown(text: str):
    assert row_of(text) is None
