"""Code that is followed step by step."""

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings


@pytest.mark.parametrize(
    ("condition", "micro_steps", "first_step", "remark"),
    [
        ("(step + 1) % N == 0", 8, 0, ""),
        ("step % N == 0", 8, 1, ""),
        ("step % N == 0", 8, 0, "after 1 of 4 micro-steps; the last 3 are thrown away"),
        ("(step + 1) % N == 0", 10, 0, "the last 2 are thrown away"),
        ("step % N != 0", 8, 0, "after 2 of 4"),
    ],
)
def test_when_a_loop_updates(condition, micro_steps, first_step, remark):
    finding = check_one({
        "kind": "accumulation-loop", "condition": condition, "accumulation": 4, "micro_steps": micro_steps,
        "first_step": first_step,
    })  # fmt: skip
    assert remark in finding.said
    assert finding.verdict == ("wrong" if remark else "consistent")


@pytest.mark.parametrize("condition", ["step % M == 0", "__import__('os')", "step %", "step ** N", "step < N"])
def test_a_condition_is_arithmetic_and_nothing_else(condition):
    with pytest.raises(InvalidSettings, match="whole numbers, step and N"):
        check_one({"kind": "accumulation-loop", "condition": condition, "accumulation": 4, "micro_steps": 8})


@pytest.mark.parametrize(
    ("check", "verdict", "remark"),
    [
        ({"kind": "call-order", "calls": ["backward", "unscale", "clip", "step", "update"]}, "consistent", ""),
        ({"kind": "call-order", "calls": ["backward", "clip", "unscale", "step"]}, "wrong", "unscaled gradients"),
        ({"kind": "loader-option", "option": "prefetch_factor", "value": 2}, "consistent", "default"),
        ({"kind": "loader-option", "option": "prefetch_factor", "value": 8}, "consistent", ""),
        ({"kind": "versions", "torch": "2.8.0+cu128", "cuda": "12.8"}, "consistent", ""),
        ({"kind": "versions", "torch": "2.8.0+cu126", "cuda": "12.8"}, "wrong", "not CUDA 12.8"),
        ({"kind": "versions", "torch": "2.1.0+cu118", "cuda": "11.8", "autocast": "torch.cuda.amp.autocast"}, "consistent", ""),
    ],
)  # fmt: skip
def test_programs(check, verdict, remark):
    finding = check_one(check)
    assert finding.verdict == verdict
    assert (remark in finding.said) if remark else not finding.said


def test_an_option_that_the_loader_does_not_have():
    with pytest.raises(InvalidSettings, match="prefetch_factor"):
        check_one({"kind": "loader-option", "option": "prefetch", "value": 2})
