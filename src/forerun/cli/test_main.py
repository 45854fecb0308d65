"""The command line may be called many times in one process, as a fuzzer does."""

import sys
import warnings

import pytest

from forerun.cli.main import main


def test_a_call_leaves_warnings_as_they_were(monkeypatch, capsys):
    before, filters = warnings.showwarning, list(warnings.filters)
    monkeypatch.setattr(sys, "argv", ["forerun", "gpus", "--search", "a100"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert "a100" in capsys.readouterr().out
    assert warnings.showwarning is before
    assert list(warnings.filters) == filters
