"""How LoRA's matrices lie over ranks on the virtual GPU, and which adapters are refused beside a layout."""

from typing import Any

import pytest

from forerun.data.plan import BatchShape
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import refuse_unsupported
from forerun.step.heads import generic_workload
from forerun.trace import Category
from forerun.virtual.trace_step import trace_step

RANK, FLOAT_BYTES, MOMENTS = 4, 4, 2
HIDDEN, CHANNELS, KEYS, BLOCKS = 64, 128, 32, 2
"""Of tiny-llama: q, o are 64 × 64, k, v 32 × 64, gate, up 128 × 64, down 64 × 128."""
TENSOR = {"tensor": 2}


def settings(parallel: dict[str, Any], **changes: Any):
    adapter = {"kind": "lora", "rank": RANK, **changes.pop("adapter", {})}
    return settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "adapter": adapter, "parallel": parallel,
        "batch": {"micro_batch_size": 2, "sequence_length": 32, "gradient_accumulation_steps": 2, "padding": "fixed"},
        **changes,
    })  # fmt: skip


def traced(parallel, **changes):
    return trace_step(
        settings(parallel, **changes), generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, 32)
    )


def state_bytes(trace):
    """Bytes of the optimizer's moments on the rank that is traced; its step counts are single numbers."""
    sizes = [storage.bytes for storage in trace.storages if storage.owner is Category.OPTIMIZER_STATE]
    return sum(size for size in sizes if size > FLOAT_BYTES)


def adapter_parameters(ranks):
    """Of one rank: whole A and parts of B where layers are split by columns, parts of A and whole B by rows."""
    columns = [(HIDDEN, HIDDEN), (HIDDEN, KEYS), (HIDDEN, KEYS), (HIDDEN, CHANNELS), (HIDDEN, CHANNELS)]
    rows = [(HIDDEN, HIDDEN), (CHANNELS, HIDDEN)]
    one = sum(i + o // ranks for i, o in columns) + sum(i // ranks + o for i, o in rows)
    return BLOCKS * RANK * one


@pytest.mark.parametrize("parallel", [{}, {**TENSOR, "sequence_parallel": True}])
def test_a_rank_holds_moments_of_its_parts_alone(parallel):
    trace = traced(parallel)
    assert trace.trainable_parameters == adapter_parameters(1)
    expected = MOMENTS * FLOAT_BYTES * adapter_parameters(parallel.get("tensor", 1))
    assert state_bytes(trace) == pytest.approx(expected, rel=0.001)


def test_shards_of_split_layers_hold_half_of_that_again():
    expected = MOMENTS * FLOAT_BYTES * adapter_parameters(2) / 2
    assert state_bytes(traced({**TENSOR, "shard": 2})) == pytest.approx(expected, rel=0.001)


def test_a_stage_holds_the_adapters_of_its_blocks():
    trace = traced({"pipeline": 2})
    assert trace.trainable_parameters == adapter_parameters(1) // BLOCKS


@pytest.mark.parametrize("parallel", [TENSOR, {"pipeline": 2}, {"shard": 1, "context": 2}])
@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"dora": True}, "adapter.dora: found True with .* Set it to false"),
        ({"dropout": 0.1}, "adapter.dropout: found 0.1 with .* Set it to 0"),
        ({"kind": "ia3"}, "adapter.kind: found 'ia3' with .* Set it to lora"),
    ],
)
def test_other_adapters_are_refused_with_the_reason(parallel, adapter, message):
    with pytest.raises(NotSupported, match=message):
        refuse_unsupported(settings(parallel, adapter=adapter))


@pytest.mark.parametrize("parallel", [TENSOR, {"pipeline": 2}])
@pytest.mark.parametrize(("target", "word"), [("lm_head", "output layer"), ("embed_tokens", "embedding")])
def test_ends_of_the_model_have_no_adapters(parallel, target, word):
    with pytest.raises(NotSupported, match=f"found the {word}"):
        traced(parallel, adapter={"targets": ["q_proj", target]})


def test_parts_trained_whole_are_not_split():
    with pytest.raises(NotSupported, match="adapter.modules_to_save"):
        refuse_unsupported(settings(TENSOR, adapter={"modules_to_save": ["lm_head"]}))
    refuse_unsupported(settings({"shard": 1, "context": 2}, adapter={"modules_to_save": ["lm_head"]}))


@pytest.mark.slow
def test_seventy_billion_weights_are_tuned_by_eight_cards():
    """LLaMA-3-70B over 8 H100: frozen weights in 16 bits, an eighth each, and moments of this rank's matrices."""
    own = settings_from({
        "name": "t", "workload": "causal-lm", "model": {"name": "llama-3-70b"}, "precision": "bf16-true",
        "adapter": {"kind": "lora", "rank": 16}, "activation_checkpointing": "blocks",
        "batch": {"micro_batch_size": 1, "sequence_length": 2048},
        "parallel": {"tensor": 8, "sequence_parallel": True},
    })  # fmt: skip
    card = device("h100-80gb")
    trace = trace_step(own, generic_workload("causal-lm"), card, BatchShape(1, 2048))
    columns = [(8192, 8192), (8192, 1024), (8192, 1024), (8192, 28672), (8192, 28672)]
    rows = [(8192, 8192), (28672, 8192)]
    assert trace.trainable_parameters == 80 * 16 * sum(i + o for i, o in columns + rows)
    local = 80 * 16 * (sum(i + o // 8 for i, o in columns) + sum(i // 8 + o for i, o in rows))
    assert state_bytes(trace) == pytest.approx(MOMENTS * FLOAT_BYTES * local, rel=0.001)
    frozen = 2 * (trace.total_parameters - trace.trainable_parameters) / 8
    parameters = sum(storage.bytes for storage in trace.storages if storage.owner is Category.PARAMETER)
    assert parameters == pytest.approx(frozen + FLOAT_BYTES * local, rel=0.001)
    assert replay_memory(trace).peak_allocated_bytes < 0.5 * card.memory_bytes
