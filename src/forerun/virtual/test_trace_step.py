"""Evaluation on the virtual GPU: what scoring and generating hold, against what the architecture says."""

import pytest

import forerun
from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.trace_step import trace_generation, trace_scoring

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
    found = forerun.forecast(
        {**BASE, "batch": {"micro_batch_size": 64, "sequence_length": 8},
         "evaluation": {"examples": 8, "new_tokens": tokens}},
        gpu="a100-40gb",
    ).memory  # fmt: skip
    assert max(found.phase_peaks, key=lambda name: found.phase_peaks[name]) == highest
    assert found.peak_allocated_bytes == max(found.phase_peaks.values()) == found.breakdown.total_bytes
    assert found.breakdown.optimizer_state_bytes >= 2 * 2 * 124_439_808


def test_an_encoder_does_not_generate():
    settings = settings_from({**BASE, "workload": "masked-lm", "model": {"name": "tiny-bert"}})
    assert trace_generation(settings, generic_workload("masked-lm"), A100, BatchShape(2, 16)) is None


def test_scoring_leaves_on_the_host_what_a_model_makes_there():
    """DeBERTa takes the logarithm of a tensor that it makes without naming a device, as it does in training."""
    settings = settings_from({**BASE, "workload": "sequence-classification", "model": {"name": "tiny-deberta-v2"},
                              "batch": {"micro_batch_size": 8, "sequence_length": 64}})  # fmt: skip
    trace = trace_scoring(settings, generic_workload("sequence-classification"), A100, BatchShape(8, 64))
    assert trace.calls
