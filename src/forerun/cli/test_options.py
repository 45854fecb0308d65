"""Options that several commands share."""

import os

import pytest
import torch

from forerun.cli.options import use_threads


@pytest.fixture
def threads_restored(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_threads_hold_here_and_in_processes_started_from_here(threads_restored):
    torch.set_num_threads(2)
    use_threads(None)
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (2, "2")
    use_threads(1)
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]) == (1, "1", "1")
