"""`forerun init` from a CSV to a file that `forerun forecast` reads; a written file is never replaced unasked."""

import csv
import json
import random
import re

import pytest
from typer.testing import CliRunner

from forerun.cli.main import command_line
from forerun.errors import InvalidSettings

WORDS = [f"word{n}" for n in range(300)]


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A CSV of labelled texts in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    chance = random.Random(0)
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for n in range(120):
            writer.writerow([" ".join(chance.choices(WORDS, k=10)), "good" if n % 2 else "bad"])
    return tmp_path / "reviews.csv"


@pytest.mark.medium
def test_a_file_of_data_becomes_settings_with_a_forecast_that_forecast_reads(reviews):
    run = CliRunner()
    result = run.invoke(
        command_line(), ["init", "reviews.csv", "--model", "tiny-bert", "--gpu", "t4"], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert "2 labels" in result.output
    assert "few rows" not in result.output
    assert "120 rows: scores will have wide" in result.output.replace("\n", " ")
    written = (reviews.parent / "run.yaml").read_text()
    assert "# Forecast on t4: fits" in written
    forecast = run.invoke(command_line(), ["forecast", "run.yaml", "--gpu", "t4", "--json"], catch_exceptions=False)
    assert forecast.exit_code == 0
    again = run.invoke(
        command_line(),
        ["init", "reviews.csv", "--model", "tiny-bert", "--gpu", "t4", "--force", "--json"],
        catch_exceptions=False,
    )
    document = json.loads(again.stdout)
    assert document["schema"] == "forerun.init/1"
    assert document["inspection"]["rows"] == 120
    peak = json.loads(forecast.stdout)["memory"]["device_bytes"]
    assert document["forecast"]["device_bytes"] == peak


@pytest.mark.medium
def test_a_file_for_a_gpu_names_the_flag_that_runs_it_without_one(reviews):
    run = CliRunner()
    run.invoke(command_line(), ["init", "reviews.csv", "--model", "tiny-bert", "--gpu", "t4"], catch_exceptions=False)
    with pytest.raises(InvalidSettings, match="fp16-mixed is for GPUs") as refusal:
        run.invoke(command_line(), ["run", "run.yaml"], catch_exceptions=False)
    flag = re.search(r"add (--set precision=\S+) to the command", str(refusal.value))
    assert flag is not None
    command = ["forecast", "run.yaml", "--gpu", "cpu", *flag.group(1).split(), "--json"]
    assert json.loads(run.invoke(command_line(), command, catch_exceptions=False).stdout)["memory"]


@pytest.mark.medium
def test_what_stops_a_run_is_said_in_place_of_the_next_command(reviews):
    reviews.write_text(reviews.read_text().replace(",bad", ",good"))
    result = CliRunner().invoke(
        command_line(), ["init", "reviews.csv", "--model", "tiny-bert", "--task", "sequence-classification"],
        catch_exceptions=False,
    )  # fmt: skip
    last = " ".join(result.output.split()).rpartition("Wrote")[2]
    assert "First, before a run is worth it: All rows (120) have the label 'good'" in last
    assert last.endswith("Then: forerun init again")
    assert "1 label" in result.output
    assert "1 labels" not in result.output


def test_another_task_is_refused_before_the_data_are_read(reviews):
    with pytest.raises(InvalidSettings, match="found 'foo'"):
        CliRunner().invoke(command_line(), ["init", "no such file", "--task", "foo"], catch_exceptions=False)


def test_rows_that_will_be_cut_are_said_on_the_screen_and_in_the_file(reviews):
    with reviews.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for n in range(300):
            writer.writerow([" ".join(f"word{n}" for _ in range(10 if n % 3 else 3000)), "good" if n % 2 else "bad"])
    result = CliRunner().invoke(
        command_line(), ["init", "reviews.csv", "--model", "tiny-bert", "--gpu", "t4"], catch_exceptions=False
    )
    (line,) = (line for line in result.output.splitlines() if "tokens a sample" in line)
    assert line.endswith("33.3% of rows are cut")
    assert line.partition(": ")[2] in (reviews.parent / "run.yaml").read_text()


def test_a_file_is_not_replaced_unasked(reviews):
    (reviews.parent / "run.yaml").write_text("mine")
    with pytest.raises(InvalidSettings, match="--force"):
        CliRunner().invoke(command_line(), ["init", "reviews.csv"], catch_exceptions=False)
    assert (reviews.parent / "run.yaml").read_text() == "mine"
