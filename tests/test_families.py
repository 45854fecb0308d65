"""Every family of the catalogue runs on the virtual GPU: forward, backward, update, in every precision offered."""

import pytest

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import Category, Phase
from forerun.virtual.trace_step import trace_step

A100 = device("a100-40gb")
HEADS = {"encoder": "sequence-classification", "causal-lm": "causal-lm", "seq2seq-lm": "seq2seq-lm"}
TWINS = {row.name: HEADS[row.parameters_of] for row in architectures() if row.name.startswith("tiny-")}
PRECISIONS = ("fp32", "fp16-mixed", "bf16-mixed", "bf16-true")


def trace(name, workload, **sections):
    content = {
        "name": name,
        "workload": workload,
        "model": {"name": name},
        "optimizer": {"max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 2, "sequence_length": 64, "gradient_accumulation_steps": 2},
        **sections,
    }
    settings = settings_from(content)
    shape = BatchShape(settings.batch.micro_batch_size, settings.batch.sequence_length)
    return trace_step(settings, generic_workload(workload), A100, shape)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", TWINS)
def test_a_step_runs_and_returns_to_its_start(name, precision):
    step_trace = trace(name, TWINS[name], precision=precision)
    assert {op.phase for op in step_trace.ops} == set(Phase)
    replay = replay_memory(step_trace)
    assert replay.start_bytes == replay.end_bytes
    assert replay.breakdown.total_bytes == replay.peak_allocated_bytes
    assert all(value >= 0 for moment in replay.curve for value in moment.live.model_dump().values())


@pytest.mark.parametrize("name", TWINS)
def test_checkpointing_and_adapters_run_together(name):
    lora = {"kind": "lora", "rank": 4, "alpha": 8, "targets": "all-linear"}
    step_trace = trace(name, TWINS[name], precision="bf16-mixed", activation_checkpointing="blocks", adapter=lora)
    assert 0 < step_trace.trainable_parameters < step_trace.total_parameters
    assert any(op.recomputed for op in step_trace.ops), "blocks are recomputed in the backward pass"
    replay = replay_memory(step_trace)
    assert replay.start_bytes == replay.end_bytes


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-llama"])
def test_bytes_of_weights_gradients_and_state_are_exact(name):
    """fp32 AdamW: two moments of four bytes per parameter and a step counter each; categories hold just that."""
    step_trace = trace(name, TWINS[name])
    owned = {c: sum(s.bytes for s in step_trace.storages if s.owner is c) for c in Category}
    assert owned[Category.PARAMETER] == 4 * step_trace.total_parameters
    tensors = sum(1 for s in step_trace.storages if s.owner is Category.PARAMETER)
    assert owned[Category.OPTIMIZER_STATE] == 8 * step_trace.trainable_parameters + 4 * tensors
    assert step_trace.checkpoint_bytes == 12 * step_trace.trainable_parameters + 4 * tensors


def test_checkpointing_lowers_the_peak_and_adds_work():
    plain = trace("tiny-llama", "causal-lm", model={"name": "tiny-llama", "config": {"num_hidden_layers": 8}})
    blocks = trace(
        "tiny-llama",
        "causal-lm",
        model={"name": "tiny-llama", "config": {"num_hidden_layers": 8}},
        activation_checkpointing="blocks",
    )
    assert replay_memory(blocks).breakdown.activation_bytes < 0.5 * replay_memory(plain).breakdown.activation_bytes
    assert sum(op.recomputed for op in blocks.ops) > 0 == sum(op.recomputed for op in plain.ops)


def test_mixed_precision_keeps_cast_weights():
    """Autocast's copies of the weights live through forward: activations grow by two bytes per matrix parameter."""
    wide = {"name": "tiny-llama", "config": {"hidden_size": 512, "intermediate_size": 2048, "num_key_value_heads": 4}}
    batch = {"micro_batch_size": 1, "sequence_length": 8}
    mixed = trace("tiny-llama", "causal-lm", model=wide, batch=batch, precision="bf16-mixed")
    full = trace("tiny-llama", "causal-lm", model=wide, batch=batch)
    grown = max(m.live.activation_bytes for m in replay_memory(mixed).curve)
    grown -= max(m.live.activation_bytes for m in replay_memory(full).curve)
    matrices = full.total_parameters - 500 * 512  # the embedding is looked up, not multiplied
    assert grown == pytest.approx(2 * matrices, rel=0.05)
