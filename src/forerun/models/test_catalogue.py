"""Every row builds to its parameter count; names, overrides and errors."""

import json
import re

import pytest
import torch

from forerun.errors import InvalidSettings, UnknownModel
from forerun.models.build import build_model
from forerun.models.catalogue import architecture, architectures, model_config

ROWS = architectures()
PUBLISHED = re.compile(r"(\d+(?:\.\d+)?)([MB])\b")
LOOSELY_PUBLISHED = {
    "bert-large-uncased": "the paper says 340M and counts the pooler and heads of pre-training",
    "xlm-roberta-base": "the paper says 270M for 278M",
    "electra-base-discriminator": "the paper says 110M, as BERT",
    "t5-large": "the paper says 770M for 738M",
    "codet5-large": "the paper says 770M for 738M",
    "deberta-v3-base": "the paper gives backbone and embedding apart",
    "phi-1.5": "the paper leaves the embeddings out",
    "gpt2-xl": "the card rounds 1.56B down",
    "phi-2": "the card rounds 2.78B down",
}


@pytest.mark.literature
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parameters_are_the_published_count(row):
    with torch.device("meta"):
        model = build_model(model_config(row.name, {}, "auto"), row.parameters_of)
    assert sum(p.numel() for p in model.parameters()) == row.parameters


@pytest.mark.literature
@pytest.mark.parametrize("row", [r for r in ROWS if PUBLISHED.search(r.source)], ids=lambda row: row.name)
def test_counts_round_to_the_published_figure(row):
    """Within half a unit of the last printed digit, or 2 % for sources that round more."""
    number, unit = PUBLISHED.search(row.source).groups()
    scale = {"M": 10**6, "B": 10**9}[unit]
    digits = len(number.partition(".")[2])
    slack = max(0.5 * 10**-digits * scale, 0.02 * row.parameters)
    slack = 0.06 * row.parameters if row.name in LOOSELY_PUBLISHED else slack
    if row.name in ("deberta-v3-base", "phi-1.5"):
        pytest.skip(LOOSELY_PUBLISHED[row.name])
    assert abs(float(number) * scale - row.parameters) <= slack


def test_known_exact_counts():
    counts = {
        "gemma-2-2b": 2_614_341_888,
        "codebert": 124_645_632,
        "llama-2-7b": 6_738_415_616,
        "pythia-6.9b": 6_857_302_016,
        "mixtral-8x7b": 46_702_792_704,
    }
    assert {name: architecture(name).parameters for name in counts} == counts


def test_names_are_lower_case_and_unique():
    spellings = [spelling for row in ROWS for spelling in (row.name, *row.aliases)]
    assert len(spellings) == len(set(spellings))
    assert all(spelling == spelling.lower() for spelling in spellings)
    assert all(row.source for row in ROWS)


def test_every_family_has_a_tiny_twin():
    tiny = {row.family for row in ROWS if row.name.startswith("tiny-")}
    assert tiny == {row.family for row in ROWS}


@pytest.mark.parametrize("name", ["microsoft/codebert-base", "Microsoft/CodeBERT-base", "codebert"])
def test_aliases(name):
    assert architecture(name).name == "codebert"


def test_unknown_names_list_the_nearest():
    with pytest.raises(UnknownModel, match="llama-2-7b"):
        architecture("llama2-8b")
    with pytest.raises(UnknownModel, match="gemma-2-2b"):
        model_config("gemma2-4b", {}, "auto")


def test_a_directory_is_a_model(tmp_path):
    model_config("tiny-bert", {}, "auto").save_pretrained(tmp_path)
    assert model_config(str(tmp_path), {}, "auto").hidden_size == 64


def test_overrides_are_checked():
    assert model_config("tiny-gpt2", {"n_layer": 5}, "auto").n_layer == 5
    with pytest.raises(InvalidSettings, match=r"model\.config\.n_layers.*n_layer"):
        model_config("tiny-gpt2", {"n_layers": 5}, "auto")


@pytest.mark.parametrize(
    ("name", "attention", "implementation"),
    [("tiny-bert", "auto", "sdpa"), ("tiny-bert", "eager", "eager"), ("tiny-gemma2", "sdpa", "eager")],
)
def test_attention(name, attention, implementation):
    assert model_config(name, {}, attention)._attn_implementation == implementation


def test_what_follows_from_a_changed_field_follows_it(tmp_path):
    sizes = {"hidden_size": 2304, "num_attention_heads": 36, "num_key_value_heads": 36}
    assert model_config("llama-7b", {}, "auto").head_dim == 128
    assert model_config("llama-7b", sizes, "auto").head_dim == 64
    assert len(model_config("gemma-2-2b", {"num_hidden_layers": 4}, "auto").layer_types) == 4
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}))
    assert model_config(str(tmp_path), sizes, "auto").head_dim == 64
    assert model_config("llama-3.2-3b", {"hidden_size": 1536}, "auto").head_dim == 128, "stated, not derived"
    with pytest.raises(InvalidSettings, match=r"model\.config: .*2048.* heads \(24\)"):
        model_config("llama-3.2-3b", {"hidden_size": 2048}, "auto")
