"""Which GPU is an example for which."""

import pytest

from forerun.clock.alike import example_of, has_half_rate, measured_like, passing_memory_like
from forerun.hardware.catalogue import device


def test_half_the_rate_is_another_class():
    assert measured_like(device("rtx-a5500"), ["rtx-3090", "a40"]) == "a40"
    assert measured_like(device("rtx-3090-ti"), ["rtx-3090", "a40"]) == "rtx-3090"
    assert measured_like(device("a40"), ["rtx-3090"]) is None


@pytest.mark.parametrize(("gpu", "half"), [("rtx-4090", True), ("l40s", False), ("h20", False), ("p100-16gb", False)])
def test_half_rate(gpu, half):
    assert has_half_rate(device(gpu)) == half


@pytest.mark.parametrize(
    ("gpu", "like"), [("rtx-2000-ada", "l4"), ("rtx-4000-ada", "l40s"), ("l4", "l4"), ("rtx-4500-ada", "l40s")]
)
def test_boards_that_power_holds_back_are_examples_for_their_like(gpu, like):
    assert example_of(device(gpu), ["l4", "l40s"]) == like


@pytest.mark.parametrize(
    ("gpu", "like"),
    [("a40", None), ("a10", "a10"), ("rtx-3080-ti", "rtx-3090"), ("rtx-a2000-12gb", "rtx-3090"), ("l4", None)],
)
def test_error_correction_in_gddr_is_another_memory(gpu, like):
    assert passing_memory_like(device(gpu), ["a10", "rtx-3090", "l40s"]) == like
