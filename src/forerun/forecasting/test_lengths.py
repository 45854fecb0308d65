"""Traced lengths and what is read off between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.data.plan import BatchPlan, BatchShape
from forerun.forecasting.lengths import at_length, shapes_to_trace


def plan(*lengths, size=8):
    shapes = [BatchShape(size, length) for length in lengths]
    return BatchPlan.count(shapes, steps=len(lengths), samples=size * len(lengths), tokens=1)


def test_few_lengths_are_all_traced():
    assert shapes_to_trace(plan(64, 64, 128), 8) == [BatchShape(8, 64), BatchShape(8, 128)]


def test_many_lengths_are_represented_by_three():
    shapes = shapes_to_trace(plan(32, 64, 96, 128, 512), 8)
    assert [s.length for s in shapes] == [32, 96, 512]


def test_only_partial_batches():
    assert shapes_to_trace(plan(64, size=3), 8) == [BatchShape(3, 64)]


@given(st.tuples(*[st.floats(0, 10)] * 3), st.integers(64, 512))
def test_quadratics_are_read_off_exactly(coefficients, length):
    a, b, c = coefficients
    values = {n: a + b * n + c * n * n for n in (64, 200, 512)}
    assert at_length(values, length) == pytest.approx(a + b * length + c * length**2, rel=1e-6, abs=1e-6)


def test_one_length_is_constant():
    assert at_length({128: 3.0}, 512) == 3.0
