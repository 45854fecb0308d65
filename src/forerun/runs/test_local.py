"""Whoever stops a run is told how to go on with it, in words that work for any target."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun.runs import local
from forerun.train.interrupt import Interrupted


def test_a_stopped_run_says_how_it_goes_on(tmp_path, monkeypatch, capsys):
    def stops(experiment, device, ledger, root, *, listener, **options):
        listener.run_id = "20261126-0345-5975"
        raise Interrupted(184, Path("runs/20261126-0345-5975/checkpoints/step-00000184"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "run_experiment", stops)
    experiment = SimpleNamespace(settings=SimpleNamespace(workload="sequence-classification"))
    with pytest.raises(Interrupted):
        local.run_locally(experiment, f"sqlite:///{tmp_path}/ledger.sqlite", quiet=True)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "Stopped after step 184" in said
    assert "Go on with the same command and --resume 20261126-0345-5975" in said
    assert "sequence-classification" not in said, "a workload is no target"
