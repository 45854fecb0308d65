"""What the README tells people to type works."""

import re
from pathlib import Path

import typer
import yaml
from benchmarks.readme_picture import figures_of, readme_forecast

from forerun.cli.main import command_line
from forerun.hardware.catalogue import devices
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_it_opens_with_what_it_is_and_two_commands():
    lines = README.splitlines()
    assert lines[0] == "# Forerun"
    first_block = README.split("```")[1]
    assert [line.split("#")[0].strip() for line in first_block.strip().splitlines()] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in ("demo", "test"))


def test_its_settings_are_valid():
    block = README.split("```yaml")[1].split("```")[0]
    assert settings_from(yaml.safe_load(block)).global_batch_size == 16


def test_its_commands_exist():
    commands = set(typer.main.get_command(command_line()).commands)
    table = README.split("## Commands")[1].split("##")[0]
    documented = {
        match.split()[0]
        for line in table.splitlines()
        if line.startswith("| `")
        for match in re.findall(r"`([a-z]+[^`]*)`", line.split("|")[1])
    }
    assert documented == commands
    assert set(re.findall(r"`?forerun ([a-z]+) ", README)) <= commands


def test_its_counts_are_those_of_the_catalogues():
    assert f"lists {len(devices())} GPUs" in README
    full_size = [row for row in architectures() if not row.name.startswith("tiny-")]
    assert f"{len(full_size)} architectures" in README


def test_its_picture_shows_what_its_settings_are_forecast_as():
    """`python -m benchmarks.readme_picture` writes both."""
    figures = figures_of(readme_forecast())
    assert f"fits, {figures}](docs/forecast.svg)" in README
    picture = (ROOT / "docs" / "forecast.svg").read_text()
    step = figures.split(", ")[1].removesuffix(" a step").replace(" ", "&#160;")
    assert step in picture
