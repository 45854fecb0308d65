"""Products by tiles and waves: what must hold whatever the coefficients are."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.clock.priors import table
from forerun.clock.products import Chip, ProductPrior, Products, analytic_seconds

CHIP = Chip(312e12, 2.039e12, 108, 40e6, 1.41e9)
PRIOR = ProductPrior.read(table()["products"]["tensor"])


def shapes(*rows, width=2.0):
    batch, m, n, k = np.array(rows, dtype=float).T
    return Products(batch, m, n, k, width)


def test_flops_and_bytes_by_hand():
    one = shapes((2, 3, 5, 7))
    assert one.flops == 2 * 2 * 3 * 5 * 7
    assert one.bytes == 2 * 2 * (21 + 35 + 15)


@given(st.tuples(*[st.integers(5, 13)] * 3))
def test_twice_the_products_take_longer_but_not_twice_as_long_and_a_wave(powers):
    shape = [2**power for power in powers]
    once, twice = analytic_seconds(PRIOR.analytic, CHIP, shapes((8, *shape), (16, *shape)))
    assert once <= twice <= 2 * once * 1.001


@given(st.tuples(*[st.integers(5, 14)] * 3))
def test_never_faster_than_the_chip(powers):
    p = shapes((1, *[2**power for power in powers]))
    seconds = PRIOR.seconds(CHIP, p)[0]
    assert np.isfinite(seconds)
    assert seconds > 0.5 * max(p.flops[0] / CHIP.flops_per_second, p.bytes[0] / CHIP.bytes_per_second) * 0.9


def sampled(count):
    random = np.random.default_rng(0)
    return Products(np.ones(count), *(2.0 ** random.integers(6, 14, count) for _ in range(3)))


@pytest.mark.parametrize("slower", [0.8, 1.3])
def test_a_gpu_of_another_speed_is_learned_from_20_products(slower):
    """Everything takes so many times as long: most of that is found, and holds for other products."""
    measured, others = sampled(20), sampled(200)
    lean = PRIOR.learn(CHIP, measured, slower * PRIOR.seconds(CHIP, measured))
    ratios = PRIOR.seconds(CHIP, others, lean) / PRIOR.seconds(CHIP, others)
    assert np.median(ratios) == pytest.approx(slower, rel=0.03)
    assert np.abs(ratios / slower - 1).max() < 0.15


def test_a_gpu_as_forecast_teaches_nothing():
    lean = PRIOR.lean["a100-80gb"]
    p = sampled(20)
    assert PRIOR.learn(CHIP, p, PRIOR.seconds(CHIP, p, lean), lean) == pytest.approx(lean, abs=1e-9)


def test_slow_bandwidth_is_told_from_slow_arithmetic():
    """20 products on a GPU with two thirds of its bandwidth: few rows at a time take longer, large products do not."""
    p = shapes(*[(1, m, n, 4096) for m in (8, 16, 64, 4096, 8192) for n in (4096, 8192, 12288, 16384)])
    slow = dataclasses.replace(CHIP, bytes_per_second=CHIP.bytes_per_second * 2 / 3)
    lean = PRIOR.learn(CHIP, p, PRIOR.seconds(slow, p))
    thin, large = PRIOR.seconds(CHIP, shapes((1, 16, 10240, 8192), (1, 4096, 6144, 8192)), lean) / PRIOR.seconds(
        CHIP, shapes((1, 16, 10240, 8192), (1, 4096, 6144, 8192))
    )
    assert thin > 1.2
    assert large < 1.1


def test_one_wild_measurement_is_not_believed():
    p = sampled(20)
    seconds = PRIOR.seconds(CHIP, p)
    seconds[7] *= 5
    lean = PRIOR.learn(CHIP, p, seconds)
    assert np.median(PRIOR.seconds(CHIP, p, lean) / PRIOR.seconds(CHIP, p)) == pytest.approx(1, abs=0.04)


def test_a_faster_clock_shortens_what_is_not_arithmetic():
    tiny = shapes((1, 64, 256, 64))
    faster = dataclasses.replace(CHIP, clock_hertz=2 * CHIP.clock_hertz)
    assert analytic_seconds(PRIOR.analytic, faster, tiny)[0] < 0.75 * analytic_seconds(PRIOR.analytic, CHIP, tiny)[0]
