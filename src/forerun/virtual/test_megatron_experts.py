"""Mixtures as Megatron-Core runs them: what is exchanged and computed is the same, what is copied and held is less."""

import pytest

from forerun.clock.between_ranks import job_of
from forerun.clock.priors import PriorCosts
from forerun.clock.timed_calls import Role, timed_calls
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import refuse_unsupported
from forerun.step.heads import generic_workload
from forerun.trace import GROUP_SIZE, OP, Issuer, Phase
from forerun.virtual.trace_step import trace_step

pytestmark = pytest.mark.medium

LAYERS, TOKENS, WIDTH, EXPERTS, CHOSEN, RANKS = 2, 512, 256, 16, 4, 8
H100 = device("h100-80gb")
MODEL = {
    "num_hidden_layers": LAYERS, "vocab_size": 1024, "hidden_size": WIDTH, "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN, "moe_intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def settings(**changes):
    parallel = {"shard": RANKS, "expert": RANKS, "zero": 1, "engine": "megatron"} | changes.pop("parallel", {})
    batch = {"micro_batch_size": 1, "gradient_accumulation_steps": 3, "sequence_length": TOKENS}
    return settings_from(
        {
            "name": "m", "workload": "causal-lm", "model": {"name": "qwen3-30b-a3b", "config": MODEL}, "batch": batch,
            "precision": "bf16-mixed", "compile": "default", "compile_unit": "blocks", "parallel": parallel, **changes,
        }
    )  # fmt: skip


def traced(**changes):
    return trace_step(settings(**changes), generic_workload("causal-lm"), H100, BatchShape(1, TOKENS))


@pytest.fixture(scope="module")
def traces():
    own = {
        "pytorch": {"parallel": {"engine": "pytorch"}}, "megatron": {}, "machines": {"cluster": {"gpus_per_node": 4}},
        "overlap": {"parallel": {"expert_overlap": True}}, "float8": {"float8": {"recipe": "tensorwise"}},
        "graphs": {"compile": "reduce-overhead"},
    }  # fmt: skip
    return {name: traced(**changes) for name, changes in own.items()}


def calls(trace, word, phase=None, micro_step=1):
    """Calls of a micro-step of the warm step whose names have `word`, in order."""
    ops = [trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP]
    inside = [op for op in ops if op.micro_step == micro_step and phase in (None, op.phase)]
    return [trace.calls[op.call] for op in inside if word in trace.calls[op.call].name]


def test_rows_go_out_and_back_in_one_exchange_each_way(traces):
    """Half a row's choices lie on other ranks: of 8 ranks with 2 of 16 experts each, 1 − C(14, 4) ÷ C(16, 4) of all
    rows reach one."""
    arriving = 8 * 231  # ceil(512 · (1 − 1001 ÷ 1820)) = 231
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        exchanges = calls(traces["megatron"], "all_to_all", phase)
        ends = [(call.inputs[0].shape[0], call.outputs[0].shape[0]) for call in exchanges]
        assert ends == [(TOKENS, arriving), (arriving, TOKENS)] * LAYERS


def test_over_machines_rows_are_handed_on(traces):
    sizes = [dict(call.keywords)[GROUP_SIZE] for call in calls(traces["machines"], "all_to_all", Phase.FORWARD)]
    assert sizes == [2, 4, 4, 2] * LAYERS


def test_products_are_those_of_the_plain_program_and_copies_are_not(traces):
    flops = {name: sum(call.flops for call in calls(traces[name], "grouped_mm")) for name in traces}
    assert len(set(flops.values())) == 1
    assert calls(traces["pytorch"], "index_put", Phase.BACKWARD)
    assert not calls(traces["megatron"], "index_put", Phase.BACKWARD)
    moved = [call.name.split(".")[1] for call in calls(traces["megatron"], "permute.") if call.name[:7] == "forerun"]
    assert sorted(moved) == ["permute"] * 3 * LAYERS + ["unpermute"] * LAYERS
    held = {name: replay_memory(traces[name]).breakdown.activation_bytes for name in ("pytorch", "megatron")}
    assert held["megatron"] < 0.8 * held["pytorch"]


def test_float8_holds_rows_in_one_byte_and_casts_weights_once_a_step(traces):
    narrow = traces["float8"]
    casts = {step: len(calls(narrow, "quantize", Phase.FORWARD, step)) for step in (0, 1)}
    assert casts == {0: 4 * LAYERS, 1: 2 * LAYERS}
    wide, own = (replay_memory(traces[name]).breakdown.activation_bytes for name in ("megatron", "float8"))
    assert own < wide
    seconds = {
        name: sum(PriorCosts(H100).device_seconds(call) for call in calls(traces[name], "grouped_mm"))
        for name in ("megatron", "float8")
    }
    assert 0 < seconds["float8"] < seconds["megatron"]


def test_exchanges_go_beside_another_micro_batch(traces):
    costs = PriorCosts(H100, world_size=RANKS, job=job_of(H100, RANKS, RANKS))
    roles = {
        name: {
            call.role
            for call in timed_calls(traces[name].calls, costs, experts_beside=traces[name].expert_overlap)
            if "all_to_all" in call.name
        }
        for name in ("megatron", "overlap")
    }
    assert roles == {"megatron": {Role.AWAITED}, "overlap": {Role.COLLECTIVE}}


def test_graphs_launch_blocks_and_the_host_launches_experts(traces):
    """And waits for the sizes of their products in every forward pass."""
    for name, issuer in (("megatron", Issuer.MODULES), ("graphs", Issuer.GRAPH)):
        trace = traces[name]
        assert {call.issuer for call in calls(trace, "fused.")} == {issuer}
        assert {call.issuer for call in calls(trace, "grouped_mm")} == {Issuer.EXPERTS}
        reads = [call for call in calls(trace, "", Phase.FORWARD) if call.syncs and call.issuer == Issuer.EXPERTS]
        assert len(reads) == LAYERS


def test_words_that_do_not_go_together_are_refused():
    for parallel in ({"engine": "pytorch"}, {"expert": 1}):
        with pytest.raises(InvalidSettings, match=r"parallel\.expert_overlap"):
            settings(parallel={"expert_overlap": True} | parallel)
    with pytest.raises(NotSupported, match="CUDA graphs"):
        refuse_unsupported(settings(compile="reduce-overhead", parallel={"engine": "pytorch"}))
