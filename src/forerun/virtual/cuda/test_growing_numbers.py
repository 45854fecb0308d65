"""Lines through what calls do."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.trace import Call, TensorSpec
from forerun.virtual.cuda.growing_numbers import NoLineError, are_near, has_grown, on_line


def attention(length):
    keys = TensorSpec((2, 4, length, 16), (64 * length, 16 * length, 16, 1), "bfloat16", 256 * length)
    return Call("attend", (keys, 0.5, None), (("is_causal", False),), (keys,), (), 256 * length, 256 * length, 64)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(0, 2000))
def test_a_call_at_any_length_is_on_the_line_through_two(first, more, length):
    share = Fraction(length - first, more)
    assert on_line((attention(first), 5), (attention(first + more), 5), share) == (attention(length), 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, "mm"), (2, "bmm")), ((1, 2), (1, 2, 3)), (True, False), (1, 1.0 + 1), (0.5, 0.25), ([1], [2])],
)
def test_what_is_no_whole_number_has_no_line(one, other):
    with pytest.raises(NoLineError):
        on_line(one, other, Fraction(2))


def test_shapes_stay_or_grow_as_the_cache_does():
    assert has_grown(((2, 1), (2, 9)), ((2, 1), (2, 12)), 3)
    assert not has_grown(((2, 1), (2, 9)), ((2, 1), (2, 12)), 2)
    assert not has_grown(((2, 1),), ((2, 1), (2, 12)), 3)
    assert not has_grown((2, "a"), (2, "b"), 0)


def test_totals_that_kernels_round_up_are_near():
    assert are_near([attention(100), 5000], [attention(101), 5024])
    assert not are_near([attention(100), 5000], [attention(100), 6000])
    assert not are_near([attention(100), 5000], [attention(110), 5000])
