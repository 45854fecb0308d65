"""Evaluation on the virtual GPU: what scoring and generating hold, against what the architecture says."""

import pytest

import forerun
from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.trace_evaluation import trace_generation, trace_scoring
from forerun.virtual.trace_step import trace_step

A100 = device("a100-40gb")
BASE = {
    "name": "v", "workload": "causal-lm", "model": {"name": "gpt2"}, "precision": "bf16-true",
    "batch": {"micro_batch_size": 8, "sequence_length": 256}, "data": {"examples": 80},
    "evaluation": {"examples": 8, "new_tokens": 256},
}  # fmt: skip


def test_generation_holds_the_key_value_cache():
    """GPT-2: 12 layers, 768 wide, keys and values of 511 tokens in bf16; the last step adds one token by copying one
    layer at a time, so at most two layers more."""
    trace = trace_generation(settings_from(BASE), generic_workload("causal-lm"), A100, BatchShape(8, 256))
    assert trace is not None
    replay = replay_memory(trace)
    cache = 2 * 12 * 768 * 8 * 511 * 2
    assert replay.peak_allocated_bytes - replay.start_bytes > cache


def test_scoring_keeps_no_activations():
    settings, workload = settings_from(BASE), generic_workload("causal-lm")
    scoring = replay_memory(trace_scoring(settings, workload, A100, BatchShape(8, 256)))
    training = forerun.forecast({**BASE, "evaluation": {}}, gpu="a100-40gb").memory
    assert scoring.peak_allocated_bytes - scoring.start_bytes < 0.7 * training.breakdown.activation_bytes


@pytest.mark.parametrize(("tokens", "highest"), [(0, "training"), (768, "generation")])
def test_the_run_peaks_where_most_is_alive(tokens, highest):
    """One training token at a time needs little; generating 768 for each of 64 prompts needs more."""
    memory = forerun.forecast(
        {**BASE, "batch": {"micro_batch_size": 64, "sequence_length": 8},
         "evaluation": {"examples": 8, "new_tokens": tokens}},
        gpu="a100-40gb",
    ).memory  # fmt: skip
    assert max(memory.phase_peaks, key=lambda name: memory.phase_peaks[name]) == highest
    assert memory.peak_allocated_bytes == max(memory.phase_peaks.values()) == memory.breakdown.total_bytes
    assert memory.breakdown.optimizer_state_bytes >= 2 * 2 * 124_439_808


def test_an_encoder_does_not_generate():
    settings = settings_from({**BASE, "workload": "masked-lm", "model": {"name": "tiny-bert"}})
    assert trace_generation(settings, generic_workload("masked-lm"), A100, BatchShape(2, 16)) is None


def test_scoring_leaves_on_the_host_what_a_model_makes_there():
    """DeBERTa takes the logarithm of a tensor that it makes without naming a device, as it does in training."""
    settings = settings_from({**BASE, "workload": "sequence-classification", "model": {"name": "tiny-deberta-v2"},
                              "batch": {"micro_batch_size": 8, "sequence_length": 64}})  # fmt: skip
    trace = trace_scoring(settings, generic_workload("sequence-classification"), A100, BatchShape(8, 64))
    assert trace.calls


PACKED = {
    **BASE, "evaluation": {"examples": 8}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 8, "sequence_length": 1024, "padding": "packed"},
    "data": {"examples": 800, "mean_tokens": 128},
}  # fmt: skip
KERNEL = "aten._flash_attention_{}.default"


@pytest.mark.medium
@pytest.mark.parametrize("compiled", ["none", "default"])
def test_packed_documents_take_the_kernel_that_the_run_takes(compiled):
    """GPT-2: 12 layers; 8 rows of 8 documents, which the log-sum-exp of (heads, tokens) does not multiply."""
    settings = settings_from({**PACKED, "compile": compiled})
    trace = trace_step(settings, generic_workload("causal-lm"), A100, BatchShape(8, 1024))
    calls = [trace.calls[op.call] for op in trace.ops]
    forward = [call for call in calls if call.name == KERNEL.format("forward")]
    assert len(forward) == len([call for call in calls if call.name == KERNEL.format("backward")]) == 12
    assert {call.arguments[0].shape for call in forward} == {(8 * 1024, 12, 64)}
    assert {call.arguments[3].shape for call in forward} == {(8 * 8 + 1,)}
    assert {call.outputs[1].shape for call in forward} == {(12, 8 * 1024)}
    assert {call.flops for call in forward} == {4 * 8 * 1024 * 768 * 2 * 128}
    assert not trace.assumed_values
    assert "variable-length" in trace.documents
    scoring = trace_scoring(settings, generic_workload("causal-lm"), A100, BatchShape(8, 1024))
    assert KERNEL.format("forward") in {call.name for call in scoring.calls}


@pytest.mark.medium
def test_a_forecast_says_how_documents_are_kept_apart_and_what_that_saves():
    """Masks are quadratic: the efficient kernel gets one of (8, 12, 1024, 1024) expanded, and twice its time."""
    with_offsets, with_masks, old = (
        forerun.forecast({**PACKED, "precision": precision, "model": {"name": "gpt2", "attention": kernel}}, gpu=gpu)
        for gpu, kernel, precision in (
            ("a100-40gb", "auto", "bf16-mixed"), ("a100-40gb", "sdpa:efficient", "bf16-mixed"), ("t4", "auto", "fp16-mixed"),
        )
    )  # fmt: skip
    assert any("variable-length attention" in warning for warning in with_offsets.warnings)
    assert any("block masks: model.attention is sdpa:efficient" in warning for warning in with_masks.warnings)
    assert any("block masks: the kernel needs compute capability 8.0" in warning for warning in old.warnings)
    assert with_offsets.memory.peak_allocated_bytes < with_masks.memory.peak_allocated_bytes
    assert with_offsets.step.seconds.expected < with_masks.step.seconds.expected
