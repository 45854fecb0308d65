"""Rows through a pipe get the form that their first letter has, and answers the place that was named."""

import io
import json
from pathlib import Path

import pytest

from forerun.cli.used_run import answers_file, rows_file, used_run
from forerun.errors import BadData, InvalidSettings, RunNotFound


class Pipe(io.TextIOWrapper):
    def isatty(self):
        return False


@pytest.mark.parametrize(
    ("text", "trained_on", "ending"),
    [
        ('{"text": "a"}\n', "t.csv", ".jsonl"),
        ('\ufeff\n[{"text": "a"}]', None, ".json"),
        ("text\na\n", None, ".csv"),
        ("text\tid\na\t1\n", "t.tsv.gz", ".tsv"),
        ("a text\n", "a/b.txt", ".txt"),
        ("text\na\n", "owner/name", ".csv"),
    ],
)
def test_piped_rows_are_a_file_while_they_are_read(monkeypatch, text, trained_on, ending):
    monkeypatch.setattr("sys.stdin", Pipe(io.BytesIO(text.encode())))
    with rows_file("-", trained_on) as file:
        assert file.endswith(ending)
        assert Path(file).read_text(encoding="utf-8") == text
    assert not Path(file).exists()
    with rows_file("mine.csv", trained_on) as file:
        assert file == "mine.csv"


def test_nothing_in_the_pipe_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", Pipe(io.BytesIO(b"")))
    with pytest.raises(BadData, match="nothing came"), rows_file("-", None):
        pass


def test_bad_rows_of_a_pipe_are_said_to_be_of_the_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", Pipe(io.BytesIO(b"text\tid\na\t1\n")))
    with (
        pytest.raises(BadData, match="^standard input, row 1: found standard input"),
        rows_file("-", "t.tsv") as file,
    ):
        raise BadData(f"{file}, row 1: found {file}")


def test_answers_go_to_the_output_when_they_are_whole(tmp_path, capsys):
    with answers_file("-") as path:
        path.write_text('{"label": "ä"}\n', encoding="utf-8")
        assert capsys.readouterr().out == ""
    assert json.loads(capsys.readouterr().out) == {"label": "ä"}
    with pytest.raises(FileNotFoundError), answers_file("-"):
        raise FileNotFoundError
    assert capsys.readouterr().out == ""
    with answers_file(str(tmp_path / "a.csv")) as path:
        assert path == tmp_path / "a.csv"


def test_a_folder_without_a_model_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    with pytest.raises(InvalidSettings, match="RUN: a run's id, or a folder"):
        used_run(str(tmp_path))
    with pytest.raises(RunNotFound, match="no run in the folder"):
        used_run("./nowhere")
    with pytest.raises(RunNotFound, match="no run 'nowhere'"):
        used_run("nowhere")
