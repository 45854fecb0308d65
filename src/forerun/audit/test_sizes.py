"""Sizes of BERT-base (109.48M parameters) and of a memory budget, by hand; and of forecasts that are made up."""

from types import SimpleNamespace

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings
from forerun.records import Range
from forerun.units import GIGA

BERT = {
    "gpu": "a100-40gb",
    "settings": {
        "workload": "sequence-classification", "model": {"name": "bert-base-uncased", "attention": "sdpa"},
        "precision": "bf16-mixed", "batch": {"micro_batch_size": 16, "sequence_length": 128}, "data": {"examples": 100},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("check", "verdict", "right"),
    [
        ({"kind": "parameters", "claimed": "110M"}, "consistent", "109.5M"),
        ({"kind": "parameters", "claimed": "85M"}, "wrong", "109.5M"),
        ({"kind": "parameters", "claimed": "85.6M", "basis": "non-embedding"}, "consistent", "85.6M"),
        ({"kind": "parameters", "model": "t5-large", "claimed": "770M"}, "consistent", "737.7M"),
        ({"kind": "parameters", "model": "gemma-2-2b", "claimed": "2B"}, "consistent", "2.614B"),
        ({"kind": "parameters", "model": "gemma-2-2b", "claimed": "2.0B"}, "wrong", "2.614B"),
        ({"kind": "parameters", "model": "okadfa-fast", "claimed": "162M"}, "wrong", "123.7M"),
        ({"kind": "family", "named": "gpt2", "claimed": "124M"}, "consistent", "124.4M"),
        ({"kind": "family", "named": "gpt2-large", "claimed": "355M"}, "wrong", "774.0M"),
        ({"kind": "memory-part", "part": "weights", "claimed": "0.44 GB"}, "consistent", "0.44 GB"),
        ({"kind": "memory-part", "part": "optimizer-state", "claimed": "0.88 GB"}, "consistent", "0.88 GB"),
        ({"kind": "memory-part", "part": "gradients", "claimed": "0.2 GB"}, "wrong", "0.44 GB"),
        ({"kind": "memory-part", "part": "activations", "claimed": "0.6 GB"}, "consistent", "0.64 GB"),
        ({"kind": "memory-part", "part": "activations", "claimed": "6 GB"}, "wrong", "0.64 GB"),
    ],
)
def test_parameters_and_their_bytes(check, verdict, right):
    """Activations: 12 layers x 34 x 128 x 16 x 768 bytes = 0.64 GB."""
    finding = check_one(check, BERT)
    assert finding.verdict == verdict, finding
    assert right in finding.right


def buffers(shape, **more):
    tensors = [{"name": "state", "shape": shape, "dtype": "float32"}]
    return check_one({"kind": "buffers", "source": "x", "tensors": tensors, **more}, BERT)


def test_buffers_are_a_lower_bound():
    assert buffers([1000, 1000, 1000], claimed="5 GB").verdict == "consistent"
    assert buffers([1000, 1000, 1000], claimed="3 GB").verdict == "wrong"
    assert buffers([1000, 1000, 11000]).verdict == "impossible"


def forecaster(low, middle, high):
    band = Range(optimistic=low * GIGA, expected=middle * GIGA, conservative=high * GIGA)
    memory = SimpleNamespace(device_bytes=band, capacity_bytes=40 * GIGA)
    return lambda settings, gpu: SimpleNamespace(memory=memory)


@pytest.mark.parametrize(
    ("check", "band", "verdict"),
    [
        ({}, (20, 22, 25), "consistent"),
        ({}, (35, 39, 42), "unsupported"),
        ({}, (50, 55, 60), "impossible"),
        ({"peak": "23 GB"}, (20, 22, 25), "consistent"),
        ({"peak": "12 GB"}, (20, 22, 25), "wrong"),
        ({"headroom": "17 GB"}, (20, 22, 25), "consistent"),
        ({"headroom": "30 GB"}, (20, 22, 25), "wrong"),
    ],
)
def test_whether_it_fits_is_the_forecasts_to_say(check, band, verdict):
    assert check_one({"kind": "fits", **check}, BERT, forecaster(*band)).verdict == verdict


def test_without_a_forecast_it_cannot_be_said():
    with pytest.raises(InvalidSettings, match="needs a forecast"):
        check_one({"kind": "fits"}, BERT)
