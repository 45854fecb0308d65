"""Which experts are dealt, what is refused with the nearest right number, and what a rank holds and exchanges."""

import math

import pytest
import torch
from transformers import MixtralConfig, Qwen2MoeConfig

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting.collectives import count_collectives
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model, refuse_unsupported
from forerun.step.expert_parallel import experts_of
from forerun.step.heads import generic_workload
from forerun.trace import Category
from forerun.virtual.trace_step import trace_step

EXPERTS, WIDTH, TOKENS, CHOSEN = 8, 64, 256, 2


def settings(model="tiny-llama", **changes):
    return settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": str(model)}, "precision": "bf16-mixed",
        "batch": {"micro_batch_size": 2, "sequence_length": TOKENS // 2, "padding": "fixed"}, **changes,
    })  # fmt: skip


@pytest.fixture
def mixtral(tmp_path):
    MixtralConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=500, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN,
    ).save_pretrained(tmp_path)  # fmt: skip
    return tmp_path


def traced(model, **parallel):
    asked = settings(model, parallel=parallel)
    return trace_step(asked, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, TOKENS // 2))


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"expert": 2}, "Nearest: 1"), ({"data": 4, "expert": 2}, "kind='ddp'"), ({"shard": 6, "expert": 4}, "Nearest: 2"),
        ({"shard": 2, "replicate": 2, "expert": 4}, "2 such ranks. Nearest: 2"),
    ],
)  # fmt: skip
def test_experts_lie_inside_the_ranks_that_shard(parallel, message):
    with pytest.raises(InvalidSettings, match=message):
        settings(parallel=parallel)


def test_context_ranks_count_among_them():
    assert settings(parallel={"shard": 2, "context": 2, "expert": 4}).parallel.shard_ranks == 4


def test_settings_without_it_keep_their_hash():
    assert settings(parallel={"shard": 4, "expert": 1}).hash == settings(parallel={"shard": 4}).hash
    assert settings(parallel={"shard": 4, "expert": 2}).hash != settings(parallel={"shard": 4}).hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": {"kind": "lora"}}, "adapters"), ({"versions": {"transformers": "4.48"}}, "layers of their own"),
        ({"workload": "masked-lm", "model": {"name": "tiny-bert"}}, "causal-lm"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(changes, message):
    with pytest.raises(NotSupported, match=message):
        refuse_unsupported(settings(**{"parallel": {"shard": 2, "expert": 2}, **changes}))


def test_numbers_that_do_not_divide_experts_and_models_without_any_are_refused(mixtral):
    with pytest.raises(InvalidSettings, match="found 3 with 8 of MixtralForCausalLM. Nearest: 2, 4"):
        traced(mixtral, shard=3, expert=3)
    with pytest.raises(NotSupported, match="has none that are known"):
        traced("tiny-llama", shard=2, expert=2)


def test_shared_experts_and_routers_are_not_dealt(tmp_path):
    Qwen2MoeConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=96,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=EXPERTS, vocab_size=500,
    ).save_pretrained(tmp_path)  # fmt: skip
    with torch.device("meta"):
        model = prepare_model(settings(tmp_path), generic_workload("causal-lm"), pretrained=False)
    assert list(experts_of(model)) == [f"model.layers.{number}.mlp.experts" for number in (0, 1)]


def exchanges_of(trace):
    counts = count_collectives(trace.part(trace.warm_from, len(trace.events)))
    return {(row.phase, row.ranks, row.bytes): row.count for row in counts if row.name == "all_to_all_single"}


def test_rows_are_sent_to_experts_and_back(mixtral):
    """Each way once forward and once backward, for both blocks: a row goes once where both its experts are there."""
    one_elsewhere = 1 - math.comb(EXPERTS // 2, CHOSEN) / math.comb(EXPERTS, CHOSEN)
    rows = 2 * math.ceil(TOKENS * one_elsewhere)
    assert TOKENS < rows < CHOSEN * TOKENS
    values, notes, numbers = rows * WIDTH * 2, rows * 2 * CHOSEN * 4, 2 * 2 * 8
    assert exchanges_of(traced(mixtral, shard=4, expert=2)) == {
        ("forward", 2, numbers): 2, ("forward", 2, values): 4, ("backward", 2, values): 4,
        ("forward", 2, notes): 2, ("backward", 2, notes): 2,
    }  # fmt: skip


def test_a_row_crosses_the_network_once_for_each_machine(mixtral):
    """Two machines of four: between machines rows of one expert on four, then among the four neighbours."""
    asked = settings(mixtral, parallel={"shard": 8, "expert": 8}, cluster={"gpus_per_node": 4})
    trace = trace_step(asked, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, TOKENS // 2))
    of_machine = 2 * math.ceil(TOKENS * (1 - math.comb(EXPERTS // 2, CHOSEN) / math.comb(EXPERTS, CHOSEN)))
    of_rank = 4 * math.ceil(2 * TOKENS * CHOSEN / EXPERTS)
    sent = exchanges_of(trace)
    for ranks, rows in ((2, of_machine), (4, of_rank)):
        assert sent["forward", ranks, rows * WIDTH * 2] == sent["backward", ranks, rows * WIDTH * 2] == 4
    grouped = [call for call in trace.calls if call.name.startswith("aten._grouped_mm")]
    assert {call.inputs[0].shape[0] for call in grouped if len(call.inputs[1].shape) == 3} == {TOKENS * CHOSEN}
    machines = {dict(call.keywords)["machines"] for call in trace.calls if "all_to_all" in call.name}
    assert machines == {1, 2}


@pytest.mark.parametrize("expert", [1, EXPERTS])
def test_more_ranks_than_experts_share_each_of_them(mixtral, expert):
    """Split by experts, the first rank held a whole one, twice its part."""
    trace = traced(mixtral, shard=2 * EXPERTS, expert=expert)
    held = sum(storage.bytes for storage in trace.storages if storage.owner is Category.PARAMETER)
    assert held == pytest.approx(4 * trace.total_parameters / (2 * EXPERTS), rel=0.05)


def test_a_rank_holds_its_experts_and_gathers_no_others(mixtral):
    sharded, dealt = traced(mixtral, shard=4), traced(mixtral, shard=4, expert=4)

    def of(trace, owner):
        return sum(storage.bytes for storage in trace.storages if storage.owner is owner)

    assert dealt.total_parameters == sharded.total_parameters
    assert of(dealt, Category.PARAMETER) == pytest.approx(of(sharded, Category.PARAMETER), rel=0.02)
    weights = 3 * EXPERTS * WIDTH * 96
    gathered = {call.bytes_written for call in sharded.calls if call.name.startswith("c10d._allgather_base_")}
    own = {call.bytes_written for call in dealt.calls if call.name.startswith("c10d._allgather_base_")}
    assert max(gathered) > 2 * weights > 2 * max(own)
