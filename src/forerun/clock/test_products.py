"""Products by tiles and waves: what must hold whatever the coefficients are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.clock.priors import table
from forerun.clock.products import Chip, ProductPrior, Products, analytic_seconds, features, fit_lean

CHIP = Chip(312e12, 2.039e12, 108, 40e6)
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


def test_a_slower_gpu_is_learned_from_20_products():
    """Everything takes 1.3 times as long: most of that is found."""
    random = np.random.default_rng(0)
    p = Products(np.ones(20), *(2.0 ** random.integers(6, 14, 20) for _ in range(3)))
    base = analytic_seconds(PRIOR.analytic, CHIP, p)
    z = (features(CHIP, p, base) - PRIOR.mean) / PRIOR.scale
    lean = fit_lean(z, np.full(20, np.log(1.3)))
    assert np.exp(lean[0]) == pytest.approx(1.3, rel=0.03)
    assert np.abs(lean[1:]).max() < 0.05
