"""Options that several commands share."""

import os

import pytest
import torch

from forerun.cli.options import ledger_url, use_threads


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


@pytest.mark.parametrize(
    ("stated", "url"),
    [
        ("runs.db", "sqlite:///{here}/runs.db"), ("/tmp/x/runs.db", "sqlite:////tmp/x/runs.db"),
        ("postgresql://name@host/runs", "postgresql://name@host/runs"), ("sqlite:///mine.db", "sqlite:///mine.db"),
    ],
)  # fmt: skip
def test_a_ledger_is_named_by_its_file_or_by_a_url(stated, url, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_LEDGER", stated)
    assert ledger_url() == url.format(here=tmp_path)
