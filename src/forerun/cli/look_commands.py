"""Commands that only look: `gpus`, `doctor`, `recipes`, `copy`."""

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import JsonOption, ledger_url, print_json
from forerun.errors import InvalidSettings

RECIPES_SCHEMA = "forerun.recipes/1"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (gpus, doctor, recipes, copy):
        app.command()(command)


def gpus(as_json: JsonOption = False) -> None:
    """List the GPU catalogue: memory, bandwidth, dense peaks, price."""
    from forerun.hardware.catalogue import devices
    from forerun.report.hardware_tables import gpus_json, gpus_table

    if as_json:
        print_json(gpus_json(devices()))
    else:
        _show(gpus_table(devices()))


def doctor(as_json: JsonOption = False) -> None:
    """Show the device here, what it can do, versions, and what is missing."""
    from forerun.hardware.doctor import examine
    from forerun.report.hardware_tables import doctor_json, doctor_view

    report = examine(ledger=ledger_url())
    if as_json:
        print_json(doctor_json(report))
    else:
        _show(doctor_view(report))


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that ship with the package."""
    from rich.table import Table

    from forerun.recipes.catalogue import MODULES, SUMMARIES

    if as_json:
        rows = [{"name": name, "summary": SUMMARIES[name]} for name in MODULES]
        print_json({"schema": RECIPES_SCHEMA, "recipes": rows})
        return
    table = Table("recipe", "what it does")
    for name in MODULES:
        table.add_row(name, SUMMARIES[name])
    _show(table)


def copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    to: Annotated[Path | None, typer.Option("--to", help="File to write; default: the recipe's name here.")] = None,
) -> None:
    """Copy a recipe's file here, to change and run it."""
    from forerun.recipes.catalogue import recipe

    source = Path(str(recipe(name).__file__))  # type: ignore[attr-defined]
    target = to or Path(source.name)
    if target.exists():
        raise InvalidSettings(f"--to: {target} exists, and copying would overwrite it. Name another file with --to.")
    target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"Copied {name} to {target}. Run it with: python {target}")


def _show(view: object) -> None:
    from rich.console import Console

    Console().print(view)
