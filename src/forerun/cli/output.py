"""How commands print tables: `print_view` what a reader reads; `with_format` gives a command the option `--format`."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any

import typer

from forerun.errors import InvalidSettings


class OutputFormat(StrEnum):
    """What a command's output is written as."""

    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"


FormatOption = Annotated[
    OutputFormat,
    typer.Option("--format", help="Write tables as Markdown or CSV (lines between them to stderr); json is --json."),
]
_format: ContextVar[OutputFormat] = ContextVar("output_format", default=OutputFormat.table)


def print_view(*views: Any) -> None:
    """Print what rich can draw, in the format that was asked for."""
    if _format.get() is OutputFormat.table:
        from rich.console import Console

        for view in views:
            Console().print(view)
        return
    from forerun.report.plain_tables import as_csv, as_markdown, lines_of, plain_parts

    parts = [part for view in views for part in plain_parts(view)]
    if _format.get() is OutputFormat.markdown:
        typer.echo(as_markdown(parts))
        return
    typer.echo(as_csv(parts), nl=False)
    for line in lines_of(parts):
        typer.echo(line, err=True)


def is_bare() -> bool:
    """Whether stdout is for tables alone, so that lines go to stderr."""
    return _format.get() is OutputFormat.csv


def with_format(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints by `print_view` and takes `as_json`, with the option `--format`, which it need not know."""

    @functools.wraps(function)
    def call(*args: Any, output_format: OutputFormat = OutputFormat.table, **options: Any) -> Any:
        if output_format is not OutputFormat.table and options.get("as_json"):
            raise InvalidSettings("--format: --json has one of its own; both were found. Drop one.")
        if output_format is OutputFormat.json:
            options["as_json"] = True
        token = _format.set(output_format)
        try:
            return function(*args, **options)
        finally:
            _format.reset(token)

    signature = inspect.signature(function)
    own = inspect.Parameter(
        "output_format", inspect.Parameter.KEYWORD_ONLY, default=OutputFormat.table, annotation=FormatOption
    )
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values(), own])  # type: ignore[attr-defined]
    call.__annotations__ = {**function.__annotations__, "output_format": FormatOption}
    return call
