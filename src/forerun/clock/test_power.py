"""Clocks under a power limit: the published measurement, and how the limit acts."""

import pytest

from forerun.clock.power import WATTS, sustained_share
from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device

A100, H100 = device("a100-40gb"), device("h100-80gb")


def test_products_of_numbers_on_an_a100_run_at_the_published_share_of_those_of_zeros():
    # thonking.ai/p/strangely-matrix-multiplications: 295 and 257 TFLOP/s of 312, 400 W
    assert sustained_share(A100, 295 / 312) == pytest.approx(257 / 295, rel=0.01)


def test_light_kernels_and_unknown_boards_keep_the_full_clock():
    assert sustained_share(H100, 0.2) == 1.0
    assert sustained_share(device("rtx-4090"), 0.9) == 1.0


def test_a_lower_limit_is_a_lower_clock_by_the_cube_root():
    resting = WATTS[9, 0][0]
    at_500 = sustained_share(H100.model_copy(update={"board_watts": 500.0}), 0.8)
    assert at_500 / sustained_share(H100, 0.8) == pytest.approx(((500 - resting) / (700 - resting)) ** (1 / 3))


@pytest.mark.parametrize(("shape", "is_slower"), [((1, 8192, 8192, 8192), True), ((1, 128, 4096, 4096), False)])
def test_only_products_that_reach_much_of_the_peak_are_slower(shape, is_slower):
    free = PriorCosts(H100.model_copy(update={"board_watts": None}))
    limited = PriorCosts(H100)
    assert (limited._products(shape, "bfloat16") > free._products(shape, "bfloat16")) is is_slower
    assert limited._products(shape, "float32") == free._products(shape, "float32"), "not on tensor cores"
