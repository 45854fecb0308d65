"""Commands that train and look back: filled in below."""

import typer


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
