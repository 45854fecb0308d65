"""What ranks that split layers hold of a mixture, what they exchange, and which mixtures are refused."""

import math

import pytest
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen2MoeConfig

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting.collectives import count_collectives
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import OP, Category
from forerun.virtual.trace_step import trace_step

EXPERTS, WIDTH, INNER, TOKENS, CHOSEN, BLOCKS = 8, 64, 96, 256, 2, 2
SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 500, "num_experts_per_tok": CHOSEN,
}  # fmt: skip
BFLOAT16, FLOAT = 2, 4


def settings(model, **changes):
    return settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": str(model)}, "precision": "bf16-mixed",
        "batch": {"micro_batch_size": 2, "sequence_length": TOKENS // 2, "padding": "fixed"}, **changes,
    })  # fmt: skip


def traced(model, **parallel):
    asked = settings(model, parallel=parallel)
    return trace_step(asked, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, TOKENS // 2))


def exchanged(trace, name):
    """(phase, ranks, bytes) → how often, in one step."""
    counts = count_collectives(trace.part(trace.warm_from, len(trace.events)))
    return {(row.phase, row.ranks, row.bytes): row.count for row in counts if row.name == name}


def parameter_bytes(trace):
    return sum(storage.bytes for storage in trace.storages if storage.owner is Category.PARAMETER)


@pytest.fixture
def mixtral(tmp_path):
    MixtralConfig(**SIZES, intermediate_size=INNER, num_local_experts=EXPERTS).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_each_rank_sends_its_share_of_the_tokens(mixtral, sequence_parallel):
    trace = traced(mixtral, shard=2, tensor=2, expert=4, sequence_parallel=sequence_parallel)
    own, others = TOKENS // 2, EXPERTS - EXPERTS // 4
    count = 4 * math.ceil(own * (1 - math.comb(others, CHOSEN) / math.comb(EXPERTS, CHOSEN)))
    numbers, rows, notes = 4 * 2 * 8, count * WIDTH * BFLOAT16, count * 2 * CHOSEN * 4
    assert exchanged(trace, "all_to_all_single") == {
        ("forward", 4, numbers): BLOCKS, ("forward", 4, rows): 2 * BLOCKS, ("backward", 4, rows): 2 * BLOCKS,
        ("forward", 4, notes): BLOCKS, ("backward", 4, notes): BLOCKS,
    }  # fmt: skip


@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"shard": 2, "tensor": 2}, {"shard": 2, "tensor": 2, "expert": 4}])
def test_a_rank_holds_its_part(mixtral, parallel):
    """All but routers and norms, which the ranks that split layers hold whole."""
    alone, trace = traced(mixtral), traced(mixtral, **parallel)
    ranks = parallel["tensor"] * parallel.get("shard", 1)
    routers = BLOCKS * EXPERTS * WIDTH * FLOAT
    assert trace.total_parameters == alone.total_parameters
    assert parameter_bytes(trace) == pytest.approx(parameter_bytes(alone) / ranks, rel=0.02, abs=routers)


def test_split_experts_exchange_activations_as_dense_layers_do(mixtral):
    trace = traced(mixtral, tensor=2, sequence_parallel=True)
    assert not exchanged(trace, "all_to_all_single")
    names = {call.name for call in trace.calls}
    assert {
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.all_gather_into_tensor.default",
    } <= names
    shapes = {spec.shape for call in trace.calls if call.name.startswith("aten._grouped_mm") for spec in call.inputs}
    assert {
        (EXPERTS, WIDTH, INNER),
        (EXPERTS, INNER // 2, WIDTH),
    } <= shapes  # gate and up of half the channels, and down


def test_dealt_experts_divide_shards_context_and_tensor():
    assert settings("tiny-llama", parallel={"tensor": 2, "expert": 2}).parallel.kind == "fsdp"
    assert settings("tiny-llama", parallel={"shard": 2, "tensor": 4, "expert": 8}).parallel.world_size == 8
    with pytest.raises(InvalidSettings, match="4 such ranks. Nearest: 4"):
        settings("tiny-llama", parallel={"shard": 2, "tensor": 2, "expert": 8})


DEEPSEEK = {
    "num_key_value_heads": 4, "intermediate_size": INNER, "moe_intermediate_size": 32, "n_routed_experts": EXPERTS,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parallel", "message"),
    [
        (Qwen2MoeConfig(**SIZES, shared_expert_intermediate_size=32), {"tensor": 2}, "gate_proj of a mixture, which its plan"),
        (GptOssConfig(**SIZES, head_dim=16), {"tensor": 2, "expert": 2}, "no plan for its blocks"),
        (DeepseekV3Config(**SIZES | DEEPSEEK), {"tensor": 2, "sequence_parallel": True}, "DeepseekV3Attention"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)  # fmt: skip
def test_what_cannot_be_split_is_refused_by_name(tmp_path, config, parallel, message):
    config.save_pretrained(tmp_path)
    with pytest.raises(NotSupported, match=message):
        traced(tmp_path, **parallel)


@pytest.mark.medium
@pytest.mark.parametrize(
    "parallel", [{"shard": 2, "tensor": 2}, {"shard": 2, "tensor": 2, "expert": 4, "sequence_parallel": True}]
)
def test_more_compiled_blocks_than_dynamo_compiles_anew(tmp_path, parallel):
    """Each mixture is a break in the graph of its block: nine blocks are one too many where each is compiled anew."""
    MixtralConfig(**SIZES | {"num_hidden_layers": 9}, num_local_experts=EXPERTS).save_pretrained(tmp_path)
    asked = settings(tmp_path, parallel=parallel, compile="default", compile_unit="blocks")
    trace = trace_step(asked, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, TOKENS // 2))
    played = [trace.calls[trace.ops[index].call].name for kind, index in trace.events[trace.warm_from :] if kind == OP]
    assert sum(name.startswith("fused.") for name in played) > 9
    assert sum(name.startswith("aten._grouped_mm") for name in played) == 9 * 6


def test_channels_of_experts_that_do_not_divide_are_refused(tmp_path):
    MixtralConfig(**SIZES | {"num_attention_heads": 6, "num_key_value_heads": 3}, head_dim=16, intermediate_size=98,
                  num_local_experts=EXPERTS).save_pretrained(tmp_path)  # fmt: skip
    with pytest.raises(InvalidSettings, match="found 3 with 98 intermediate channels|found 3 with 98 of"):
        traced(tmp_path, tensor=3)
