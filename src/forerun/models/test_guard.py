"""What others raise becomes ours with its cause; errors of ours and memory that ran out pass; a model has an end."""

import pytest
import torch
from torch import nn

from forerun.errors import InvalidSettings, UnknownModel, UntraceableOp
from forerun.models import guard
from forerun.models.guard import cause_of, guarded, limited_parts


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError(), RecursionError("deep"), SystemError("no cause")])
def test_an_error_of_others_is_ours_with_its_type_and_place(error):
    message = r"tiny cannot be traced: .*test_guard\.py:\d+\)\. Report"
    guard_here = guarded(UntraceableOp, "tiny cannot be traced", "Report it.")
    with pytest.raises(UntraceableOp, match=message) as caught, guard_here:
        raise error
    assert type(error).__name__ in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [UnknownModel("ours"), torch.OutOfMemoryError("full"), KeyboardInterrupt()])
def test_what_somebody_above_waits_for_passes(error):
    with pytest.raises(type(error)), guarded(UntraceableOp, "x", "y"):
        raise error


def test_a_cause_is_one_line_and_never_empty():
    assert cause_of(ValueError("first\nsecond")) == "first (ValueError)"
    assert cause_of(ValueError()) == "no message (ValueError)"
    assert len(cause_of(ValueError("x" * 9_000))) < 400


def test_a_model_has_an_end(monkeypatch):
    monkeypatch.setattr(guard, "MOST_MODULES", 10)
    with limited_parts("small"):
        nn.Sequential(*[nn.ReLU() for _ in range(10)])
    with pytest.raises(InvalidSettings, match="at most 10 modules in a model; deep"), limited_parts("deep"):
        nn.Sequential(*[nn.ReLU() for _ in range(11)])
    nn.Sequential(*[nn.ReLU() for _ in range(11)])
