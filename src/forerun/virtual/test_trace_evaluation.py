"""Evaluation beside training: ranks that share the weights do so there too."""

import pytest

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.trace_evaluation import trace_generation, trace_scoring

LAYERS, WIDTH = 12, 256
CONTENT = {
    "name": "e", "workload": "causal-lm", "precision": "bf16-mixed",
    "model": {"name": "tiny-llama", "config": {
        "vocab_size": 512, "hidden_size": WIDTH, "intermediate_size": 1024, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False,
    }},
    "batch": {"micro_batch_size": 1, "sequence_length": 32}, "data": {"examples": 640},
    "evaluation": {"examples": 16},
}  # fmt: skip


def settings(**parallel):
    return settings_from({**CONTENT, "parallel": parallel})


def scoring(**parallel):
    return trace_scoring(settings(**parallel), generic_workload("causal-lm"), device("a100-80gb"), BatchShape(1, 32))


def test_shards_are_gathered_block_by_block_in_scoring_too():
    """Each of four ranks has a quarter of the fp32 weights, and one or two blocks of the 16-bit ones."""
    alone, shared = scoring(), scoring(shard=4)
    count = alone.total_parameters or sum(4 * WIDTH**2 + 3 * WIDTH * 1024 for _ in range(LAYERS)) + 2 * 512 * WIDTH
    whole, part = replay_memory(alone), replay_memory(shared)
    assert whole.start_bytes == pytest.approx(4 * count, rel=0.02)
    assert part.start_bytes < 1.1 * count
    assert part.peak_allocated_bytes < 0.6 * whole.peak_allocated_bytes
    names = [call.name for call, _ in shared.warm_calls()]
    # what is in no block stays gathered from the first batch on, as no backward pass lets go of it
    assert sum("_allgather_base" in name for name in names) == LAYERS


@pytest.mark.parametrize(
    "parallel",
    [
        {"shard": 2, "replicate": 2}, {"shard": 1, "tensor": 2},
        {"kind": "ddp", "world_size": 4, "zero": 3, "zero_buckets": "auto"},
        pytest.param({"shard": 2, "context": 2}, marks=pytest.mark.medium),
    ],
)  # fmt: skip
def test_other_ways_to_share_weights_score(parallel):
    assert replay_memory(scoring(**parallel)).start_bytes < 0.7 * replay_memory(scoring()).start_bytes


def test_copies_score_with_whole_weights():
    copies = scoring(kind="ddp", world_size=4)
    assert replay_memory(copies).start_bytes == replay_memory(scoring()).start_bytes


def test_generation_over_shards_gathers_for_each_token():
    given = settings_from({**CONTENT, "parallel": {"shard": 4}, "evaluation": {"examples": 4, "new_tokens": 3}})
    trace = trace_generation(given, generic_workload("causal-lm"), device("a100-80gb"), BatchShape(1, 8))
    assert trace is not None
    gathers = [call.name for call, _ in trace.warm_calls() if "_allgather_base" in call.name]
    assert len(gathers) > LAYERS


def test_evaluation_over_shards_is_no_peak_of_whole_weights():
    """A sharded 7B was said not to fit for an evaluation with all of its fp32 weights on each rank."""
    result = forecast(settings(shard=4), "a100-80gb")
    peaks = result.memory.phase_peaks
    assert peaks["scoring"] < 1.2 * peaks["training"]
