import math
from collections import Counter, OrderedDict, deque, namedtuple
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.evaluate.jail.values import decode, encode, overwrite

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.sets(st.integers()),
    max_leaves=20,
)  # fmt: skip


def refuse(*_):
    raise ValueError("no references here")


def across(value):
    return decode(encode(value, refuse), refuse)


@settings(max_examples=200, deadline=None)
@given(PLAIN)
def test_plain_values_come_out_as_they_went_in(value):
    result = across(value)
    assert result == value
    assert type(result) is type(value)


def test_values_of_the_library():
    for value in (Counter("aab"), OrderedDict(b=1, a=2), deque([1, 2]), Decimal("1.10"), Fraction(1, 3), date(2026, 1, 2),
                  datetime(2026, 1, 2, 3), timedelta(days=1, seconds=2), range(1, 9, 2), bytearray(b"x"), 2**9999, int, len):  # fmt: skip
        assert across(value) == value
        assert type(across(value)) is type(value)
    assert math.isnan(across(float("nan")))
    assert across(float("-inf")) == -math.inf


def test_classes_of_the_program_lose_their_methods():
    point = namedtuple("point", "x y")

    class Equal(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(across(point(1, 2))) is tuple
    assert across(Equal(1)) != 2


@pytest.mark.parametrize("content", [["l"], ["?", 1], [1, 2, 3], {}, ["n", "__import__"], ["i", "xyz"], ["d", [[1]]]])
def test_what_is_no_value(content):
    with pytest.raises((ValueError, TypeError)):
        decode(content, refuse)


def test_overwriting():
    for old, new in (([1], [2, 3]), ({1: 2}, {}), ({1}, {2}), (bytearray(b"a"), bytearray(b"bc")), (deque([1]), deque([2]))):  # fmt: skip
        overwrite(old, new)
        assert old == new
