"""One option writes every command's tables as Markdown, CSV or JSON; the shell completes names."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from forerun.cli.main import command_line
from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device

run = CliRunner().invoke


def test_each_format_says_the_same():
    words = ["gpus", "--search", "t4"]
    rows = list(csv.DictReader(io.StringIO(run(command_line(), [*words, "--format", "csv"]).stdout)))
    (row,) = [row for row in rows if row["GPU"].rstrip("*") == "t4"]
    assert float(row["GiB"]) == pytest.approx(device("t4").memory_bytes / 2**30, abs=0.05)
    assert f"| {row['GPU']} | {row['GiB']} |" in run(command_line(), [*words, "--format", "markdown"]).stdout
    documents = [
        json.loads(run(command_line(), [*words, *option]).stdout) for option in (["--json"], ["--format", "json"])
    ]
    assert documents[0] == documents[1]
    assert "capability" in run(command_line(), [*words, "--format", "csv"]).stderr, "lines between tables are not lost"
    assert run(command_line(), [*words, "--format", "table"]).stdout == run(command_line(), words).stdout


@pytest.mark.parametrize("line", ["gpus 4070 ti super", "networks efa", "models llama 3 8b --json"])
def test_words_behind_a_list_are_searched_for(line):
    command, *words = line.split()
    options = [word for word in words if word.startswith("-")]
    text = " ".join(word for word in words if word not in options)
    said, searched = (run(command_line(), some) for some in ([command, *words], [command, "--search", text, *options]))
    assert (said.exit_code, said.stdout) == (0, searched.stdout)
    assert len(said.stdout) < len(run(command_line(), [command, *options]).stdout)


def test_two_formats_are_refused():
    result = run(command_line(), ["recipes", "--json", "--format", "csv"])
    assert isinstance(result.exception, InvalidSettings)
    assert result.stdout == ""


@pytest.mark.parametrize("words", [["models", "--search", "bert"], ["recipes"], ["networks"]])
def test_commands_of_groups_have_it_too(words):
    assert "| --- |" in run(command_line(), [*words, "--format", "markdown"]).stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("forerun forecast --gpu a100-4", {"a100-40gb", "a100-40gb-pcie"}),
        ("forerun forecast --gpu t4,l4", {"t4,l4", "t4,l40", "t4,l40s"}),
        ("forerun forecast code-det", {"code-detector"}),
        ("forerun models show llama-2-7", {"llama-2-7b"}),
        ("forerun copy arith", {"arithmetic"}),
        ("forerun gpus --format m", {"markdown"}),
    ],
)
def test_bash_completes_names(line, expected):
    words = complete(line)
    assert expected <= set(words), words
    assert all(word.startswith(line.rpartition(" ")[2]) for word in words)


def complete(line: str) -> list[str]:
    """What bash is told, in this process: the script that it runs does this and splits the lines."""
    environment = {"_FORERUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return run(command_line(), [], prog_name="forerun", env=environment).stdout.split()


def test_bash_itself_completes_a_run(tmp_path):
    from forerun.ledger.store import open_ledger

    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(
            name="mini",
            workload="tiny",
            settings={"name": "mini"},
            settings_hash="x",
            gpu="cpu",
            folder="nowhere",
            versions={},
        )
    script = run(command_line(), [], prog_name="forerun", env={"_FORERUN_COMPLETE": "source_bash"}).stdout
    start = "from forerun.cli.main import command_line; command_line()(prog_name='forerun')"  # as the installed command is called
    (tmp_path / "forerun").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    (tmp_path / "forerun").chmod(0o755)
    program = f"{script}\nCOMP_WORDS=(forerun watch {run_id[:4]})\nCOMP_CWORD=2\n_forerun_completion forerun\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    environment = {**os.environ, "FORERUN_LEDGER": url, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == [run_id], result.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_the_same(shell):
    environment = {
        "_FORERUN_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "forerun forecast --gpu a100-4",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    assert "a100-40gb-pcie" in run(command_line(), [], prog_name="forerun", env=environment).stdout
