"""`models`: the catalogue of models; `models show NAME`: one model's sizes, sources, and what fits on which card."""

from itertools import takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forerun.cli.options import GpuOption, JsonOption, SetOption, complete_models, gpu_names, print_json, say_note
from forerun.cli.output import print_view, with_format

MODELS_SCHEMA, MODEL_SCHEMA = "forerun.models/1", "forerun.model/1"


class WordsOrCommand(TyperGroup):
    """Words that are no command are searched for: `models llama` is `models --search llama`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Arguments as the group takes them."""
        words = list(takewhile(lambda word: not word.startswith("-"), args))
        if words and words[0] not in self.commands:
            args = ["--search", " ".join(words), *args[len(words) :]]
        return super().parse_args(ctx, args)


models_app = typer.Typer(cls=WordsOrCommand, help="The catalogue of models, or one of them: models show NAME.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(models_app, name="models")


@models_app.callback(invoke_without_command=True)
@with_format
def models(
    context: typer.Context,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Only models with these words: a name, id or family.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the models whose sizes are known without a network. Any hub id or folder with a config works as well."""
    if context.invoked_subcommand is not None:
        return

    from forerun.models.rows import searched_rows
    from forerun.report.model_tables import models_table

    rows, note = searched_rows(search)
    if note:
        say_note(note)
    if as_json:
        print_json({"schema": MODELS_SCHEMA, "models": [row.model_dump(mode="json") for row in rows]})
    else:
        print_view(models_table(rows))


@models_app.command()
@with_format
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A catalogue name, words, a hub id, or a folder.", autocompletion=complete_models
        ),
    ],
    gpu: GpuOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sizes and sources of a model, and what it needs at least; with --gpu, forecasts of training it there."""

    from forerun.api import describe_model
    from forerun.report.model_tables import model_view

    description = describe_model(name, gpu_names(gpu, default="") if gpu else [], overrides or ())
    if as_json:
        print_json({"schema": MODEL_SCHEMA, **description.model_dump(mode="json")})
    else:
        print_view(model_view(description))
