"""Settings that are valid in every word and once failed together: each is forecast, or refused for the reason that is true.

`benchmarks.covering` asks about every pair; its whole array is the slow part.
"""

from itertools import product

import pytest
from benchmarks import covering
from benchmarks.covering import FACTORS, Coverage, conflict_of, cover, covered_settings, settings_of, smallest

import forerun
from forerun.errors import InvalidSettings, NotSupported

DDP, FSDP = {"kind": "ddp", "world_size": 2}, {"kind": "fsdp", "world_size": 2}


def forecast(model, workload="causal-lm", gpu="a100-40gb", **changes):
    settings = {"name": "v", "workload": workload, "model": {"name": model}, "batch": {"sequence_length": 32}}
    return forerun.forecast({**settings, "data": {"examples": 256}, **changes}, gpu=gpu)


@pytest.mark.medium
@pytest.mark.parametrize(("model", "workload"), [("tiny-llama", "causal-lm"), ("tiny-bert", "masked-lm")])
@pytest.mark.parametrize("unit", ["model", "blocks"])
def test_ddp_is_compiled(model, workload, unit):
    compiled = forecast(model, workload, compile="default", compile_unit=unit, parallel=DDP)
    eager = forecast(model, workload, parallel=DDP)
    assert compiled.step.phases.communication_seconds > 0
    assert compiled.step.seconds.expected < eager.step.seconds.expected


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_blocks_are_recorded_as_graphs(mode):
    recorded = forecast("tiny-llama", compile=mode, compile_unit="blocks")
    compiled = forecast("tiny-llama", compile="default", compile_unit="blocks")
    assert recorded.step.seconds.expected < compiled.step.seconds.expected, "a graph is launched once"


def test_sgd_updates_shards():
    assert forecast("tiny-llama", optimizer={"name": "sgd"}, parallel=FSDP).step.phases.optimizer_seconds > 0
    with pytest.raises(NotSupported, match="fused sgd takes no tensors that are split"):
        forecast("tiny-llama", optimizer={"name": "sgd", "implementation": "fused"}, parallel=FSDP)


def test_a_head_that_shares_its_weights_with_the_embedding_is_sharded():
    alone, shared = (forecast("tiny-bert", "masked-lm", parallel=p).memory.breakdown for p in ({"kind": "none"}, FSDP))
    assert shared.parameter_bytes == pytest.approx(alone.parameter_bytes / 2, rel=0.1)


@pytest.mark.parametrize(
    ("gpu", "precision"), product(["h100-80gb", "b200"], ["bf16-mixed", "fp16-mixed", "bf16-true"])
)
def test_a_learned_bias_trains_on_hopper(gpu, precision):
    assert forecast("tiny-t5", "seq2seq-lm", gpu, precision=precision).fits


def test_muon_asks_for_bfloat16():
    with pytest.raises(InvalidSettings, match="muon multiplies gradients in bfloat16, which t4 only emulates"):
        forecast("tiny-llama", gpu="t4", optimizer={"name": "muon"})
    assert forecast("tiny-llama", optimizer={"name": "muon"}).fits


def test_an_end_of_sequence_beyond_the_vocabulary_pads_nothing():
    assert forecast("starcoder2-3b", "sequence-classification").parameters.total > 3e9


def test_packed_weights_are_sharded():
    copies, shards = (
        forecast("tiny-llama", adapter={"kind": "lora"}, quantization="nf4", parallel=p) for p in (DDP, FSDP)
    )
    assert shards.memory.breakdown.parameter_bytes < 0.6 * copies.memory.breakdown.parameter_bytes
    with pytest.raises(NotSupported, match="those of 8 bits in none"):
        forecast("tiny-llama", adapter={"kind": "lora"}, quantization="int8", parallel=FSDP)


def test_a_step_is_no_shorter_than_a_micro_batch():
    batch = {"sequence_length": 32, "micro_batch_size": 4}
    few, enough = (forecast("tiny-llama", batch=batch, parallel={**DDP, "world_size": n}) for n in (512, 64))
    assert few.step.phases.forward_seconds == pytest.approx(enough.step.phases.forward_seconds)


def test_frozen_layers_are_gathered_on_the_virtual_stream():
    times = {
        forecast("tiny-bert", "sequence-classification", adapter={"kind": "lora"}, parallel=FSDP).step.seconds.expected
        for _ in range(2)
    }
    assert len(times) == 1


def answer_of(forbidden):
    def answer(row):
        levels = set(row.items())
        broken = next((pair for pair in forbidden if pair <= levels), None)
        return ("", "") if broken is None else ("refused", str(sorted(broken)))

    return answer


def test_an_array_covers_what_goes_together_and_names_what_does_not():
    sizes = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 3}
    forbidden = [frozenset({("a", 1), ("c", 2)}), frozenset({("b", 1), ("d", 1)}), frozenset({("e", 2)})]
    result = cover(answer_of(forbidden), sizes, seconds=10)
    assert set(result.coverage.conflicts) == set(forbidden)
    assert not result.coverage.left()
    assert not result.failures
    pairs = list(result.coverage.pairs())
    assert len(pairs) == sum(sizes[x] * sizes[y] for x in sizes for y in sizes if x < y)
    assert result.forecasts < len(pairs) / 3


def test_pairs_that_are_left_late_are_asked_alone(monkeypatch):
    monkeypatch.setattr(covering, "MIXED_SHARE", 0.0)
    sizes, rows = {"a": 3, "b": 2, "c": 4}, list[covering.Row]()
    result = cover(lambda row: (rows.append(row), answer_of([])(row))[1], sizes, seconds=10)
    assert not result.coverage.left()
    assert all(sum(level > 0 for level in row.values()) <= 2 for row in rows)


def test_a_refused_row_is_made_small():
    conflict = frozenset({("a", 1), ("c", 2)})
    row = smallest({"a": 1, "b": 1, "c": 2, "d": 1}, lambda row: conflict <= set(row.items()))
    assert conflict_of(row) == conflict
    assert Coverage({"a": 2, "c": 3}, conflicts={conflict: "x"}).breaks(row)


def test_the_simplest_row_is_settings():
    content, gpu = settings_of(dict.fromkeys(FACTORS, 0))
    assert (content["workload"], gpu) == ("causal-lm", "h100-80gb")


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_every_pair_of_settings_is_forecast_or_refused_in_our_words():
    result = covered_settings(seconds=3 * 3600)
    assert not result.failures
    assert not result.coverage.left()
