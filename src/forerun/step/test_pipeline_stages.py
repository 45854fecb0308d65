"""Stages cut from a model give what the whole gives, and are alike where their blocks and links are."""

import copy
import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.errors import NotSupported
from forerun.models.build import model_config
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.step.pipeline_stages import FAMILIES, block_owners, cut, output_blocks, places_on_rank, stages_like
from forerun.step.test_decoder_types import small

SIZES = {
    "num_hidden_layers": 5, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "tie_word_embeddings": False, "pad_token_id": 0, "head_dim": 8,
    "moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
CLOSELY = (
    "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3",
    "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "granitemoe",
)  # fmt: skip
"""Families whose stages are compared in other tests as well."""
LATENT = {"num_key_value_heads": 4, "head_dim": 4}
"""Of families with latent attention."""


def settings(pipeline=2, schedule="1f1b", virtual=1, **changes):
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "fp32",
        "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "fixed", "sequence_length": 16},
        "parallel": {"pipeline": pipeline, "schedule": schedule, "virtual_stages": virtual}, **changes,
    })  # fmt: skip


@pytest.mark.parametrize("family", CLOSELY)
def test_stages_in_turn_are_the_whole_model(family):
    sizes = {**SIZES, **(LATENT if family.startswith("deepseek") else {})}
    require_equal(AutoConfig.for_model(family, **sizes))


@pytest.mark.medium
@pytest.mark.parametrize("family", sorted(FAMILIES - set(CLOSELY)))
def test_stages_of_every_other_family(family):
    """Windows shorter than the sequence, scaled and capped logits."""
    tiny = small(family)
    require_equal(model_config(tiny["name"], {**tiny["config"], "tie_word_embeddings": False}, "auto"))


def require_equal(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, config.vocab_size, (2, 16))
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
    assert block_owners(5, settings(4)) == [0, 1, 1, 2, 3]
    assert block_owners(8, settings(4)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [places_on_rank(settings(4, "interleaved", 2), rank) for rank in (0, 3)] == [[0, 4], [3, 7]]
    assert [places_on_rank(settings(4, "zero-bubble", 2), rank) for rank in (0, 3)] == [[0, 7], [3, 4]]


def test_a_large_output_layer_counts_as_blocks():
    """By LLaMA-3-8B's sizes: 4,096 x 128,256 beside 218 million weights a block, and 8,192 tokens' scores of 4,096."""
    large = settings(
        4,
        model={"name": "llama-3.1-8b"},
        batch={"micro_batch_size": 1, "gradient_accumulation_steps": 4, "padding": "fixed", "sequence_length": 8192},
    )
    block = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336 + 2 * 4096
    assert output_blocks(large) == pytest.approx(4096 * 128256 / (block + 8192 * 4096), rel=1e-6)
    assert [block_owners(32, large).count(stage) for stage in range(4)] == [8, 9, 9, 6]
    small = settings(2, model={"name": "tiny-qwen2", "config": {"vocab_size": 97}})
    assert 0 < output_blocks(small) < 1
    sizes = [block_owners(5, small).count(stage) for stage in range(2)]
    assert sum(sizes) == 5
    assert sizes[1] <= sizes[0]


def test_of_experts_those_count_that_a_token_meets():
    """Two of Mixtral's eight, and its router."""
    mixture = settings(4, model={"name": "mixtral-8x7b"})
    expert = 3 * 4096 * 14336
    block = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 2 * expert + 8 * 4096 + 2 * 4096
    assert output_blocks(mixture) == pytest.approx(4096 * 32000 / (block + 16 * 4096), rel=1e-6)


@pytest.mark.parametrize(("name", "words"), [("gpt2", "not known to give"), ("llama-3.2-1b", "tied embeddings")])
def test_models_that_cannot_be_cut(name, words):
    asked = settings(model={"name": name})
    with torch.device("meta"):
        model = prepare_model(asked, generic_workload("causal-lm"), pretrained=False)
    with pytest.raises(NotSupported, match=words):
        cut(model, asked, 0, "meta")


def alike(blocks, pipeline, shard, config=None, **parallel):
    """Of each stage in the middle the stages like it, from itself on."""
    config = {"num_hidden_layers": blocks, "tie_word_embeddings": False, "vocab_size": 97, **(config or {})}
    model = {"name": "tiny-qwen2", "config": config}
    asked = settings(pipeline, model=model, parallel={"pipeline": pipeline, "shard": shard, **parallel})
    return [stages_like(asked, stage) for stage in range(1, pipeline - 1)]


def test_stages_are_alike_in_blocks_and_in_links():
    assert alike(8, 4, 2) == [[1, 2], [2]]
    assert alike(9, 4, 2) == [[1], [2]], "three blocks and two"
    assert alike(16, 8, 8) == [list(range(stage, 7)) for stage in range(1, 7)]
    assert alike(12, 6, 4) == [[1, 3], [2, 4], [3], [4]], (
        "halves of machines: the next is in the same one, or it is not"
    )
    assert alike(12, 6, 3) == [[1], [2], [3], [4]], "three ranks lie alike every eight stages"
    assert alike(8, 4, 2, schedule="interleaved", virtual_stages=2) == [[1, 2], [2]]
    assert alike(10, 4, 2, schedule="interleaved", virtual_stages=2) == [[1], [2]], "the second has a block more"
    assert alike(11, 4, 2, schedule="interleaved", virtual_stages=2) == [[1], [2]], "one part more has two blocks"
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"] * 2
    assert alike(8, 4, 2, {"layer_types": kinds}) == [[1], [2]], "the windows of blocks 2, 3 and 4, 5 differ"
