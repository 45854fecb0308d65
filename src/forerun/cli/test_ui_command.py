"""The pages for anybody leave nothing behind, and run nothing that is pasted."""

import os
from pathlib import Path

import pytest

from forerun.cli.ui_command import leaving_nothing, ui
from forerun.errors import InvalidSettings


def test_what_public_pages_write_goes_with_them(monkeypatch):
    monkeypatch.setenv("FORERUN_LEDGER", "sqlite:///mine.sqlite")
    monkeypatch.delenv("FORERUN_TRACES", raising=False)
    with leaving_nothing():
        folder = Path(os.environ["FORERUN_CACHE"])
        assert {folder, *folder.parents} & {Path(os.environ["FORERUN_TRACES"]).parent}
        assert str(folder) in os.environ["FORERUN_LEDGER"]
        (folder / "trace").write_text("kept")
    assert not folder.exists()
    assert os.environ["FORERUN_LEDGER"] == "sqlite:///mine.sqlite"
    assert "FORERUN_TRACES" not in os.environ


def test_scripts_of_anybody_are_not_run():
    with pytest.raises(InvalidSettings, match="--allow-scripts"):
        ui(public=True, allow_scripts=True)
