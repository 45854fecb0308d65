"""Adapters in fp32 beside weights in 16 bits are told with their seconds, and the setting that avoids them."""

from forerun.api import forecast

LLAMA = {
    "name": "w", "workload": "causal-lm", "precision": "bf16-true", "model": {"name": "llama-7b", "config": {
        "num_hidden_layers": 2,
    }},
    "batch": {"micro_batch_size": 4, "sequence_length": 1024}, "data": {"examples": 800},
    "adapter": {"kind": "lora", "rank": 64},
}  # fmt: skip


def warned(**changes):
    result = forecast(LLAMA | changes, "a100-80gb")
    return result, [each for each in result.warnings if each.startswith("adapter: ")]


def test_wide_adapters_are_told_and_what_avoids_them_is_faster():
    wide, said = warned()
    assert len(said) == 1
    assert "model.dtype: bfloat16" in said[0]
    narrow, nothing = warned(precision="bf16-mixed", model=LLAMA["model"] | {"dtype": "bfloat16"})
    assert not nothing
    assert narrow.step.seconds.expected < 0.8 * wide.step.seconds.expected
    assert narrow.memory.peak_allocated_bytes <= 1.02 * wide.memory.peak_allocated_bytes
    older, nothing = warned(versions={"peft": "0.11.1"})
    assert not nothing
    assert older.step.seconds.expected < 0.8 * wide.step.seconds.expected


def test_none_where_nothing_is_wide():
    assert not warned(adapter={"kind": "none"})[1]
    assert not warned(quantization="nf4")[1]
