"""Options that several commands share, and what they print."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from forerun.ledger.store import Ledger

TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="A recipe's name or a YAML file of settings.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a setting by its dotted path; repeat.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
GpuOption = Annotated[
    list[str] | None, typer.Option("--gpu", metavar="NAME", help="Catalogue name, or cpu; comma-separated or repeated.")
]


def gpu_names(options: list[str] | None, default: str) -> list[str]:
    """GPU names of repeated and comma-separated options, each once, in order."""
    names = [name.strip() for option in options or [] for name in option.split(",") if name.strip()]
    return list(dict.fromkeys(names)) or [default]


def print_json(document: BaseModel | dict[str, Any]) -> None:
    """One JSON document on stdout."""
    if isinstance(document, BaseModel):
        document = json.loads(document.model_dump_json(by_alias=True))
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


@contextlib.contextmanager
def ledger_if_any() -> "Iterator[Ledger | None]":
    """The ledger, for commands that can do without: one that cannot be opened is said on stderr."""
    from rich.console import Console

    from forerun.errors import LedgerConflict
    from forerun.ledger.store import open_ledger

    try:
        ledger = open_ledger(ledger_url())
    except LedgerConflict as error:
        Console(stderr=True).print(f"Going on without a ledger. {error}", soft_wrap=True, markup=False)
        yield None
        return
    with ledger:
        yield ledger


def ledger_url() -> str:
    """Where runs are kept: FORERUN_LEDGER, or the user's own SQLite file. The environment is read only here."""
    from forerun.ledger.store import default_url

    return os.environ.get("FORERUN_LEDGER") or default_url()
