"""Stages cut from a model give what the whole gives; what is refused says why."""

import copy
import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.step.pipeline import FAMILIES, block_owners, cut, places_on_rank

SIZES = {
    "num_hidden_layers": 5, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "tie_word_embeddings": False, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip


def settings(pipeline=2, schedule="1f1b", virtual=1, **changes):
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "fp32",
        "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "fixed", "sequence_length": 16},
        "parallel": {"pipeline": pipeline, "schedule": schedule, "virtual_stages": virtual}, **changes,
    })  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_in_turn_are_the_whole_model(family):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES)).eval()
    ids = torch.randint(0, 97, (2, 16))
    expected = model(input_ids=ids).logits
    asked, states, names = settings(2, "interleaved", 2), ids, []
    ranks = [copy.deepcopy(model) for _ in range(2)]
    stages = dict(
        itertools.chain.from_iterable(
            zip(places_on_rank(asked, rank), cut(part, asked, rank, "cpu"), strict=True)
            for rank, part in enumerate(ranks)
        )
    )
    for place in range(4):
        states = stages[place](states)
    assert torch.equal(states, expected)
    for part in ranks:
        names += [name for name, _ in part.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_blocks_are_dealt_evenly_and_the_ends_have_fewer():
    assert block_owners(5, 4) == [0, 1, 1, 2, 3]
    assert block_owners(8, 4) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [places_on_rank(settings(4, "interleaved", 2), rank) for rank in (0, 3)] == [[0, 4], [3, 7]]
    assert [places_on_rank(settings(4, "zero-bubble", 2), rank) for rank in (0, 3)] == [[0, 7], [3, 4]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "longest"}}, "one shape"),
        ({"adapter": {"kind": "lora"}}, "adapters are not dealt"),
        ({"workload": "masked-lm", "model": {"name": "bert-base-uncased"}}, "built for causal-lm"),
        ({"evaluation": {"examples": 8, "new_tokens": 4}}, "generating over stages"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_with_its_reason(changes, words):
    asked = settings(**changes)
    with pytest.raises(NotSupported, match=words), torch.device("meta"):
        prepare_model(asked, generic_workload(asked.workload), pretrained=False)


@pytest.mark.parametrize(("name", "words"), [("gpt2", "not known to give"), ("llama-3.2-1b", "tied embeddings")])
def test_models_that_cannot_be_cut(name, words):
    asked = settings(model={"name": name})
    with torch.device("meta"):
        model = prepare_model(asked, generic_workload("causal-lm"), pretrained=False)
    with pytest.raises(NotSupported, match=words):
        cut(model, asked, 0, "meta")
