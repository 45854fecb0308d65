"""What `parallel.engine: megatron` changes of a traced step, and that what it loses is found again nowhere."""

import pytest
import torch
from torch import fx

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import refuse_unsupported
from forerun.step.heads import generic_workload
from forerun.trace import OP, Phase
from forerun.train.ranks import join_group
from forerun.virtual.megatron import nodes_of_weights
from forerun.virtual.trace_step import trace_stages, trace_step

TOKENS, VOCABULARY, SPLIT = 512, 6144, {"shard": 2, "zero": 1, "tensor": 2, "sequence_parallel": True}
STAGES = {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2}


def settings(parallel, micro_batches=2, **changes):
    model = {"name": "llama-3-8b", "config": {"num_hidden_layers": 4, "vocab_size": VOCABULARY}}
    batch = {"micro_batch_size": 1, "gradient_accumulation_steps": micro_batches, "sequence_length": TOKENS}
    return settings_from(
        {
            "name": "t", "workload": "causal-lm", "model": model, "precision": "bf16-mixed", "compile": "default",
            "batch": {**batch, "padding": "fixed"}, "compile_unit": "blocks", "parallel": parallel, **changes,
        }
    )  # fmt: skip


def traced(engine, **changes):
    own = settings(SPLIT | {"engine": engine}, **changes)
    return trace_step(own, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(1, TOKENS))


def calls(trace, micro_step, phase):
    """What one micro-step of the warm step calls, in order."""
    ops = [trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP]
    return [trace.calls[op.call] for op in ops if op.micro_step == micro_step and op.phase is phase]


def count(found, word):
    return sum(word in call.name for call in found)


@pytest.fixture(scope="module")
def both():
    return {engine: traced(engine) for engine in ("pytorch", "megatron")}


def test_matrices_of_layers_are_summed_by_products_and_the_embedding_is_not(both):
    sums = {
        engine: [call for call in calls(trace, 1, Phase.BACKWARD) if call.name == "aten.add_.Tensor"]
        for engine, trace in both.items()
    }
    matrices = {engine: [call for call in each if len(call.outputs[0].shape) == 2] for engine, each in sums.items()}
    assert len(matrices["pytorch"]) == 4 * 7 + 2
    assert [call.outputs[0].shape for call in matrices["megatron"]] == [(VOCABULARY // 2, 4096)]


def test_a_rank_has_the_gradient_of_its_own_rows_of_the_embedding(both):
    rows = {
        engine: [c.outputs[0].shape[0] for c in calls(trace, 1, Phase.BACKWARD) if "embedding_dense_backward" in c.name]
        for engine, trace in both.items()
    }
    assert rows == {"pytorch": [VOCABULARY], "megatron": [VOCABULARY // 2]}


def test_what_was_gathered_is_gathered_again_and_not_held(both):
    gathers = {e: count(calls(trace, 1, Phase.BACKWARD), "all_gather_into_tensor") for e, trace in both.items()}
    assert gathers["megatron"] == gathers["pytorch"] + 2 * 4
    held = {engine: replay_memory(trace).breakdown.activation_bytes for engine, trace in both.items()}
    of_block = TOKENS * 4096 * 2
    assert held["pytorch"] - held["megatron"] > 4 * 2 * of_block / 2


def test_the_loss_is_two_kernels_and_one_that_scales(both):
    forward, backward = (calls(both["megatron"], 1, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert [c.name for c in forward if "vocab_parallel" in c.name] == [
        "forerun.vocab_parallel_softmax.default", "forerun.vocab_parallel_cross_entropy.default",
    ]  # fmt: skip
    assert count(backward, "vocab_parallel_scale") == 1
    logits = TOKENS * VOCABULARY // 2
    wide = {e: [c for c in calls(t, 1, Phase.FORWARD) if _fp32_of(c, logits)] for e, t in both.items()}
    assert len(wide["megatron"]) == 0 < len(wide["pytorch"])


def _fp32_of(call, elements):
    return any(o.dtype == "float32" and o.bytes == 4 * elements for o in call.outputs)


@pytest.mark.medium
def test_weights_are_cast_to_float8_once_a_step():
    pytest.importorskip("torchao")
    trace = traced("megatron", float8={"recipe": "tensorwise"})
    weight = 14336 // 2 * 4096
    casts = {
        step: sum(_float8_of(call, weight) for phase in (Phase.FORWARD, Phase.BACKWARD) for call in calls(trace, step, phase))
        for step in (0, 1)
    }  # fmt: skip
    assert casts[1] == 0 < casts[0]
    plain = traced("pytorch", float8={"recipe": "tensorwise"})
    assert any(_float8_of(call, weight) for call in calls(plain, 1, Phase.FORWARD))


def _float8_of(call, elements):
    return call.name.startswith("fused.") and any("float8" in o.dtype and o.bytes == elements for o in call.outputs)


@pytest.mark.medium
def test_stages_have_room_for_what_arrives_only_until_it_was_used():
    """In PyTorch each further micro-batch takes two more buffers of each part, in Megatron none."""
    peaks = {}
    for engine in ("pytorch", "megatron"):
        own = settings(STAGES | {"shard": 2, "zero": 1, "engine": engine}, 8)
        for micro_batches, trace in zip(
            (8, 16),
            trace_stages(own, generic_workload("causal-lm"), device("h100-80gb"), BatchShape(1, TOKENS), [1], (8, 16)),
            strict=True,
        ):
            peaks[engine, micro_batches] = replay_memory(trace).peak_allocated_bytes
    buffer = TOKENS * 4096 * 2
    assert peaks["pytorch", 16] - peaks["pytorch", 8] > 8 * 2 * buffer
    assert peaks["megatron", 16] - peaks["megatron", 8] < buffer
    assert peaks["megatron", 8] < peaks["pytorch", 8]


def test_what_is_not_known_of_megatron_is_refused():
    for parallel in ({"data": 2}, {"shard": 2}, {"shard": 2, "zero": 2}):
        with pytest.raises(InvalidSettings, match=r"parallel\.engine"):
            settings(parallel | {"engine": "megatron"})
    with pytest.raises(NotSupported, match=r"parallel\.engine.*--script megatron"):
        join_group(settings(SPLIT | {"engine": "megatron"}), "cpu")


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"adapter": {"kind": "lora"}}, "adapter.kind"), ({"workload": "masked-lm"}, "workload"),
     ({"cross_entropy": "chunked"}, "cross_entropy"),
     ({"parallel": {"pipeline": 2, "schedule": "gpipe", "engine": "megatron"}}, "parallel.schedule")],
)  # fmt: skip
def test_steps_that_megatron_has_no_parts_for_are_refused(changes, word):
    own = {"parallel": {"shard": 2, "zero": 1, "engine": "megatron"}} | changes
    with pytest.raises(NotSupported, match=rf"{word}.*parallel\.engine=megatron"):
        refuse_unsupported(settings(**own))


def test_nodes_of_weights_depend_on_nothing_else():
    def block(primals_1, primals_2):
        return primals_1 @ (primals_2 * 2).t()

    graph = fx.symbolic_trace(block).graph
    shapes = iter([(1, 8, 4), (4, 4)])
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta["val"] = torch.empty(next(shapes))
        node.op = "call_function" if node.op == "call_method" else node.op
    assert {node.name for node in nodes_of_weights(graph)} == {"mul", "t"}
