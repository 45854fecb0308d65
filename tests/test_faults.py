"""Some of the faults that `benchmarks.faults` lists, and that its comparison tells a loss from none."""

import pytest
import torch
from benchmarks.faults import FAULTS, meet_all
from benchmarks.kills import Ending, difference, shares

FAST = ("disk: a quota on files", "model.safetensors one bit flipped", "loss is NaN for good")


@pytest.mark.slow
def test_a_fault_costs_no_step_and_is_told_in_one_line(tmp_path):
    torch.set_num_threads(1)
    results = meet_all([fault for fault in FAULTS if fault.name in FAST], tmp_path)
    assert results == [(name, "") for name in FAST]


def test_a_run_that_lost_something_is_told_from_one_that_did_not():
    whole = Ending("a", {1: 0.5, 2: 0.25})
    assert difference(whole, whole, has_ledger=True) == ""
    assert "other weights" in difference(Ending("b", whole.losses), whole, has_ledger=True)
    assert "lacks 1 of 2" in difference(Ending("a", {1: 0.5}), whole, has_ledger=True)
    assert "another loss in step 2" in difference(Ending("a", {1: 0.5, 2: 0.3}), whole, has_ledger=True)
    assert "did not end: killed" in difference("killed", whole, has_ledger=True)


def test_kills_are_dealt_out():
    assert shares(100, 20) == [5] * 20
    assert shares(7, 3) == [3, 2, 2]
