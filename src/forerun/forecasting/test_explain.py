"""The explanation names what the forecast counted, and its levers keep what they promise."""

import pytest

import forerun
from forerun.api import explain_settings
from forerun.forecasting.explain import candidate_changes
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from

BASE = {
    "name": "e", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-true",
    "adapter": {"kind": "lora", "rank": 4}, "batch": {"micro_batch_size": 4, "sequence_length": 128},
    "data": {"examples": 400},
}  # fmt: skip


@pytest.fixture(scope="module")
def explanation():
    return explain_settings(settings_from(BASE), device("a100-40gb"))


def test_the_largest_tensors_are_named_with_their_line(explanation):
    activations = [t for t in explanation.largest if t.operator and t.phase == "forward"]
    assert activations
    assert all(".py:" in t.line for t in activations)
    assert len(explanation.largest) == 10


def test_modules_hold_what_is_alive(explanation):
    peak = forerun.forecast(BASE, gpu="a100-40gb").memory.peak_allocated_bytes
    total = sum(size for parts in explanation.modules.values() for size in parts.values())
    workspaces = 2 * 8_519_680
    assert total == pytest.approx(peak - workspaces, rel=0.02)


def test_levers_save_what_a_forecast_with_them_says(explanation):
    peak = forerun.forecast(BASE, gpu="a100-40gb").memory.peak_allocated_bytes
    for lever in explanation.levers[:2]:
        changed = forerun.forecast(BASE, gpu="a100-40gb", overrides=lever.change.split())
        assert lever.saves_bytes == peak - changed.memory.peak_allocated_bytes
    assert explanation.levers[0].saves_bytes > 0


@pytest.mark.slow
def test_the_largest_micro_batch_fits_and_one_more_does_not():
    base = {
        **BASE,
        "precision": "fp16-true",
        "model": {"name": "gpt2"},
        "batch": {"micro_batch_size": 1, "sequence_length": 1024},
    }
    largest = explain_settings(settings_from(base), device("t4")).largest_micro_batch_size
    assert largest
    for size, fits in ((largest, True), (largest + 1, False)):
        batch = {"micro_batch_size": size, "sequence_length": 1024}
        assert forerun.forecast({**base, "batch": batch}, gpu="t4").fits is fits


def test_a_lever_keeps_the_global_batch():
    settings = settings_from({**BASE, "batch": {"micro_batch_size": 6, "gradient_accumulation_steps": 3}})
    halved = next(change for _, change, _ in candidate_changes(settings) if change[0].startswith("batch"))
    assert settings_from(settings.model_dump(), halved).global_batch_size == settings.global_batch_size


@pytest.mark.medium
def test_exchanges_of_a_rank_are_listed(explanation):
    """Two blocks with split sequences: keys and values are gathered forward and backward, their gradients go round."""
    assert explanation.exchanges == []
    split = {**BASE, "adapter": {}, "parallel": {"shard": 2, "context": 2}, "batch": {"sequence_length": 128}}
    rows = explain_settings(settings_from(split), device("a100-40gb")).exchanges
    assert rows == sorted(rows, key=lambda row: -row.bytes * row.count)
    pieces = [row for row in rows if row.ranks == 2]
    assert {(row.name, row.phase, row.count) for row in pieces} == {
        ("all_gather_into_tensor", "forward", 2), ("all_gather_into_tensor", "backward", 2),
        ("all_to_all_single", "backward", 4),
    }  # fmt: skip
    assert {row.ranks for row in rows if "reduce_scatter" in row.name} == {4}
