"""Benchmarks of BERT-base on an A100."""

import pytest

from forerun.audit.check import check_one

A100 = {"gpu": "a100-40gb"}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "consistent"),
        ({"repeats": 1}, "unsupported"),
        ({"measures": "inference"}, "wrong"),
        ({"tokens": 2, "samples": 1}, "wrong"),
    ],
)
def test_a_benchmark_has_the_shape_of_training(changes, verdict):
    """64 x 128 tokens of BERT-base: 4.4 TFLOP, 14 ms of an A100 at peak."""
    settings = {
        "model": "bert-base-uncased", "measures": "training", "stands_for": "training", "samples": 64, "tokens": 128,
        "dtype": "bfloat16", "seconds": "40 ms", "iterations": 50, "repeats": 5,
    }  # fmt: skip
    assert check_one({"kind": "benchmark", **settings, **changes}, A100).verdict == verdict


def test_iterations_are_no_repeats():
    assert check_one({"kind": "repeats", "iterations": 50}).verdict == "unsupported"
    assert check_one({"kind": "repeats", "iterations": 50, "repeats": 5}).verdict == "consistent"
