"""The allocator by settings: what is reserved, what is said of it, and what training sets."""

import pytest
import torch

import forerun
from forerun.forecasting.allocator_warnings import unused_bytes
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.train.ranks import join_group
from forerun.units import GIB, MIB

RUN = {
    "name": "a", "workload": "causal-lm", "precision": "bf16-mixed",
    "model": {"name": "llama-3-8b", "config": {"num_hidden_layers": 2}},
    "batch": {"micro_batch_size": 8, "sequence_length": 2048}, "data": {"examples": 800},
}  # fmt: skip


def test_settings_reserve_less_with_expandable_segments():
    plain = forerun.forecast(RUN, gpu="h100-80gb")
    own = forerun.forecast(RUN | {"allocator": {"expandable_segments": True}}, gpu="h100-80gb")
    assert own.memory.peak_allocated_bytes == pytest.approx(plain.memory.peak_allocated_bytes, rel=1e-3)
    assert own.memory.peak_reserved_bytes < plain.memory.peak_reserved_bytes
    assert own.memory.device_bytes.expected < plain.memory.device_bytes.expected
    assert own.settings_hash != plain.settings_hash


def test_defaults_have_the_hash_of_before():
    assert settings_from(RUN).hash == settings_from(RUN | {"allocator": {"max_split_size_mb": None}}).hash


@pytest.mark.parametrize(
    ("allocated", "reserved", "gpu", "conf", "expected"),
    [
        (20 * GIB, 30 * GIB, "h100-80gb", "", 10 * GIB),
        (20 * GIB, 30 * GIB, "h100-80gb", "max_split_size_mb:128", 10 * GIB),
        (20 * GIB, 30 * GIB, "h100-80gb", "expandable_segments:True", 0),
        (20 * GIB, 30 * GIB, "mi300x", "", 0),
        (29 * GIB, 30 * GIB, "h100-80gb", "", 0),
        (100 * MIB, 900 * MIB, "h100-80gb", "", 0),
    ],
)
def test_what_nothing_uses(allocated, reserved, gpu, conf, expected):
    assert unused_bytes(allocated, reserved, device(gpu), conf) == expected


def test_training_sets_the_allocator_before_it_starts(monkeypatch):
    words: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", words.append)
    join_group(settings_from(RUN | {"allocator": {"expandable_segments": True}}), "cuda")
    join_group(settings_from(RUN), "cuda")
    join_group(settings_from(RUN | {"allocator": {"max_split_size_mb": 64}}), "cpu")
    assert words == ["expandable_segments:True"]
