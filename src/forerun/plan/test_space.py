"""What may be chosen: divisors of the batch, formats that the hardware has, and the order of recomputation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.plan.space import (
    batch_sizes,
    changed,
    differences,
    is_leaner,
    method_ladder,
    precisions,
    recomputations,
    strategies,
)
from forerun.settings.load import settings_from

SETTINGS = settings_from({
    "name": "r", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"examples": 100},
    "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 32},
})  # fmt: skip


@given(st.integers(1, 300))
def test_sizes_divide_the_batch_and_do_not_pass_the_data(batch):
    sizes = batch_sizes(SETTINGS, batch)
    assert sizes == sorted(n for n in range(1, batch + 1) if batch % n == 0 and n <= 100)


@pytest.mark.parametrize(
    ("gpu", "precision", "expected"),
    [
        ("t4", "bf16-mixed", ["fp16-mixed", "fp32"]),
        ("t4", "bf16-true", ["fp16-mixed"]),
        ("a100-40gb", "fp32", ["bf16-mixed", "tf32"]),
        ("a100-40gb", "fp16-mixed", ["fp16-mixed", "tf32"]),
        ("a100-40gb", "bf16-true", ["bf16-true"]),
    ],
)
def test_formats_that_the_hardware_has(gpu, precision, expected):
    assert precisions(changed(SETTINGS, {"precision": precision}), device(gpu)) == expected


def test_changes_are_found_by_path_and_refused_when_they_break_a_rule():
    other = changed(SETTINGS, {"batch.micro_batch_size": 4, "optimizer.learning_rate": 1e-3, "name": "other"})
    assert [c.description for c in differences(SETTINGS, other)] == [
        "optimizer.learning_rate 2e-05 → 0.001", "batch.micro_batch_size 2 → 4",
    ]  # fmt: skip
    with pytest.raises(InvalidSettings, match="micro_batch_size"):
        changed(SETTINGS, {"batch.micro_batch_size": 101})


def test_leaner_means_saving_at_least_as_much_everywhere():
    kinds = recomputations(SETTINGS)
    assert kinds[0] == {"activation_checkpointing": "none", "cross_entropy": "full"}
    assert all(is_leaner(kind, kinds[0]) for kind in kinds[1:])
    chunked, selective = kinds[1], kinds[2]
    assert not is_leaner(chunked, selective)
    assert not is_leaner(selective, chunked)
    assert len(recomputations(changed(SETTINGS, {"workload": "sequence-classification"}))) == 3


def test_the_ladder_of_methods_is_mild_first_and_stops_at_what_is_there():
    names = [name for name, _ in method_ladder(SETTINGS, device("a100-40gb"))]
    assert names == ["8-bit optimizer", "LoRA", "LoRA on weights in 16 bits", "QLoRA"]
    assert [name for name, _ in method_ladder(SETTINGS, device("t4"))] == ["8-bit optimizer", "LoRA", "QLoRA"]
    packed = changed(SETTINGS, {"adapter.kind": "lora", "quantization": "nf4", "precision": "bf16-true"})
    assert method_ladder(packed, device("a100-40gb")) == []


@pytest.mark.parametrize("parallel", [{"shard": 2, "context": 2}, {"shard": 4, "expert": 2}, {"shard": 2, "tensor": 2}])
def test_what_shares_rows_or_experts_goes_with_shards_only(parallel):
    words = {"name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 64}}
    assert strategies(settings_from({**words, "parallel": parallel})) == ["fsdp"]
    assert strategies(settings_from({**words, "parallel": {"shard": 4}})) == ["ddp", "fsdp"]
    assert strategies(settings_from({**words, "parallel": {"shard": 4, "offload": "parameters"}})) == ["fsdp"]


NARROW = {"precision": "bf16-mixed", "model.dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("start", "precision", "expected"),
    [
        ({**NARROW, "adapter.kind": "lora"}, "fp16-mixed", "float16"),
        (NARROW, "fp16-mixed", "auto"),  # a loss scale refuses their gradients
        ({**NARROW, "adapter.kind": "lora", "adapter.modules_to_save": ["lm_head"]}, "fp16-mixed", "auto"),
        ({**NARROW, "adapter.kind": "lora"}, "tf32", "auto"),
        ({"precision": "bf16-mixed", "model.dtype": "float32"}, "fp16-mixed", "auto"),
        ({"precision": "bf16-mixed"}, "fp16-mixed", "auto"),
    ],
)
def test_weights_of_16_bits_stay_so_under_another_precision_where_they_can(start, precision, expected):
    settings = changed(changed(SETTINGS, start), {"precision": precision})
    assert (settings.precision, settings.model.dtype) == (precision, expected)


def test_the_formats_of_weights_in_16_bits_are_those_under_autocast():
    assert precisions(changed(SETTINGS, NARROW), device("a100-40gb")) == ["bf16-mixed"]
    assert precisions(changed(SETTINGS, NARROW), device("t4")) == ["fp16-mixed"]
    assert len(precisions(changed(SETTINGS, NARROW | {"model.dtype": "float32"}), device("a100-40gb"))) > 1


@pytest.mark.parametrize("zero", [1, 2])
def test_every_rung_of_the_ladder_is_settings_under_deepspeed_too(zero):
    sharded = changed(SETTINGS, {"parallel.kind": "ddp", "parallel.world_size": 2, "parallel.zero": zero})
    rungs = {name: changed(sharded, changes) for name, changes in method_ladder(sharded, device("a100-40gb"))}
    assert rungs["LoRA on weights in 16 bits"].has_narrow_weights
    plain = changed(SETTINGS, dict(method_ladder(SETTINGS, device("a100-40gb")))["LoRA on weights in 16 bits"])
    assert (plain.precision, plain.model.dtype) == ("bf16-mixed", "bfloat16")
