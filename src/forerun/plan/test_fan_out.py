"""The same results in this process and in others."""

import importlib.util
import math

import pytest

from forerun.errors import InvalidSettings, NotSupported
from forerun.plan.fan_out import fan_out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_results_come_in_the_order_of_the_parts(workers):
    with fan_out(workers) as fan:
        assert fan.workers == int(workers)
        assert list(fan.map(math.pow, [2, 3, 5], [3, 2, 1])) == [8, 9, 5]


def test_other_words_are_refused():
    for text in ("0", "-1", "many", "1.5"):
        with pytest.raises(InvalidSettings, match="--workers wants"), fan_out(text):
            pass


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_ray_is_asked_for_by_name_where_it_is_missing():
    with pytest.raises(NotSupported, match="ray is not installed"), fan_out("ray"):
        pass
