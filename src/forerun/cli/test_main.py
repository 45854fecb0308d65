"""The command line may be called many times in one process, as a fuzzer does."""

import sys
import warnings
from importlib.metadata import version

import pytest
from typer.main import get_command

from forerun.cli.main import MODULES, _say_notes, command_line, main
from forerun.spelling import NameNote


def test_a_call_leaves_warnings_as_they_were(monkeypatch, capsys):
    before, filters = warnings.showwarning, list(warnings.filters)
    monkeypatch.setattr(sys, "argv", ["forerun", "gpus", "--search", "a100"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert "a100" in capsys.readouterr().out
    assert warnings.showwarning is before
    assert list(warnings.filters) == filters


def test_a_note_is_said_once_whatever_filters_libraries_set(capsys):
    show = _say_notes(lambda *place, **more: None)
    for text in ("taken as t4", "taken as t4", "taken as l4"):
        show(NameNote(text), NameNote, "file.py", 1)
    assert capsys.readouterr().err.count("taken as t4") == 1


def test_a_command_line_that_names_its_command_loads_that_module_alone():
    everything = get_command(command_line()).commands
    own = [name for names in MODULES.values() for name in names]
    assert set(everything) - set(own) == {"embed", "monitor", "serve", "similar"}, "of a recipe's entry points"
    assert len(own) == len(set(own)) <= len(everything)
    for names in MODULES.values():
        for name in names:
            alone = get_command(command_line(name)).commands
            assert set(alone) == set(names)
            assert alone[name].help == everything[name].help
    assert list(get_command(command_line("forcast")).commands) == list(everything), "a word that is none is suggested"


def test_it_says_its_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forerun", "--version"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"forerun {version('forerun')}\n"
