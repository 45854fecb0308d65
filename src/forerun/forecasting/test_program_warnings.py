"""What a program's forecast says of itself; most of it in `tests/test_exec_recovery.py` and beside it."""

import pytest

from forerun.forecasting.program_warnings import speed_warnings
from forerun.trace import Call, TensorSpec, Trace


def trace_of(dtype):
    factor = TensorSpec((64, 64), (64, 1), dtype, 4096)
    return Trace(calls=[Call("aten.mm.default", (), (), (factor, factor), (), 2 * 64**3, 0, 0)])


@pytest.mark.parametrize(
    ("dtype", "mfu", "count"),
    [("bfloat16", 0.6, 0), ("bfloat16", 1.34, 1), ("float8_e4m3fn", 1.34, 0), ("float8_e4m3fn", 2.1, 1)],
)
def test_a_step_above_the_cards_peak_is_not_to_be_trusted(dtype, mfu, count):
    """A DeepSpeed step was once taken for two, at 134 % of the peak; float8 is told against the peak of 16 bits."""
    warnings = speed_warnings(mfu, trace_of(dtype))
    assert len(warnings) == count
    assert all(f"{mfu:.0%}" in each and "too low" in each for each in warnings)
