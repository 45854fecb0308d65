"""`forerun watch`: a run of the ledger while it goes on."""

import time
from typing import Annotated

import typer

from forerun.cli.options import JsonOption, RunArgument, ledger_url, print_json

WATCH_SCHEMA = "forerun.watch/1"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(watch)


def watch(
    run_id: RunArgument = "last",
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Look again after so long.")
    ] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Follow a run until it ends: loss, pace, memory, time left. With --json: its state now, without waiting."""
    from rich.console import Console
    from rich.live import Live

    from forerun.ledger.store import open_ledger
    from forerun.runs.watching import view_of, view_panel

    with open_ledger(ledger_url()) as ledger:
        view = view_of(ledger, run_id)
        if as_json:
            print_json({"schema": WATCH_SCHEMA, **view.model_dump(mode="json")})
            return
        console = Console()
        if view.is_over or not console.is_terminal:
            console.print(view_panel(view))
        if view.is_over:
            return
        with Live(view_panel(view), console=console, auto_refresh=False, transient=not console.is_terminal) as live:
            while not view.is_over:
                time.sleep(every)
                view = view_of(ledger, view.run_id)
                live.update(view_panel(view), refresh=console.is_terminal)
        if not console.is_terminal:
            console.print(view_panel(view))
