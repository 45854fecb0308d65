"""Options that several commands share."""

import os

import pytest
import torch

from forerun.cli.options import gpu_names, ledger_url, use_threads, usual_gpu


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


@pytest.mark.parametrize(
    ("names", "gpu", "note"),
    [([], "a100-40gb", ""), (["Tesla T4", "NVIDIA A10G"], "t4", ""), (["NVIDIA Z9"], "a100-40gb", "NVIDIA Z9 is not in")],
)  # fmt: skip
def test_the_card_here_is_the_usual_gpu(names, gpu, note, monkeypatch, capsys):
    monkeypatch.setattr("forerun.hardware.detect.read_card_names", lambda: names)
    assert gpu_names(None, default=usual_gpu) == [gpu]
    assert note in capsys.readouterr().err
    assert gpu_names(["l4"], default=usual_gpu) == ["l4"]
