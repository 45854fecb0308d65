"""Commands about recipes: `recipes` and `copy`."""

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import JsonOption, complete_recipes, print_json
from forerun.cli.output import print_view, with_format
from forerun.errors import InvalidSettings

RECIPES_SCHEMA = "forerun.recipes/1"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (recipes, copy):
        app.command()(command)


@with_format
def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that ship with the package."""
    from rich.table import Table

    from forerun.runs.registry import profiles, recipe_names, summary
    from forerun.settings.load import load_settings

    settings = {name: load_settings(path) for name, path in profiles().items()}
    if as_json:
        rows = [{"name": name, "summary": summary(name)} for name in recipe_names()]
        more = [{"name": name, "recipe": s.workload, "model": s.model.name} for name, s in settings.items()]
        print_json({"schema": RECIPES_SCHEMA, "recipes": rows, "profiles": more})
        return
    table = Table("recipe", "what it does")
    for name in recipe_names():
        table.add_row(name, summary(name))
    for name, s in settings.items():
        table.add_row(name, f"settings of {s.workload} with {s.model.name}", style="dim")
    print_view(table)


def copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.", autocompletion=complete_recipes)],
    to: Annotated[Path | None, typer.Option("--to", help="File to write; default: the recipe's name here.")] = None,
) -> None:
    """Copy a recipe's file here, to change and run it."""
    from forerun.runs.registry import load_recipe, profiles

    source = profiles().get(name) or Path(str(load_recipe(name).__file__))  # type: ignore[attr-defined]
    target = to or Path(name.replace("-", "_") + source.suffix)
    if target.exists():
        raise InvalidSettings(f"--to: {target} exists, and copying would overwrite it. Name another file with --to.")
    target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    run = "forerun forecast" if target.suffix == ".yaml" else "python"
    typer.echo(f"Copied {name} to {target}. Use it with: {run} {target}")
