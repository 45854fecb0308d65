"""`look`: what the model will see of the data, token by token, before anything is trained."""

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, SetOption, TargetArgument, print_json
from forerun.errors import NotSupported

if TYPE_CHECKING:
    from rich.text import Text

    from forerun.own.look import Look, LookedSide

LOOK_SCHEMA = "forerun.look/1"
LEARNED, SPECIAL, PLAIN = "bold green", "magenta", "default"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(look)


def look(
    target: TargetArgument,
    overrides: SetOption = None,
    rows: Annotated[int, typer.Option("--rows", min=1, max=100, help="So many rows.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Show the first rows of own data as the model sees them; tokens that carry loss are green."""
    from rich.console import Console

    from forerun.api import resolve
    from forerun.own.look import look_at

    settings = resolve(target, overrides or ())
    if settings.data.source is None:
        raise NotSupported(
            f"look: shows the rows of data.source; {target} names none. Set data.source to a file, or make a settings "
            f"file with: forerun init FILE."
        )
    looked = look_at(settings, rows)
    if as_json:
        print_json({"schema": LOOK_SCHEMA, **looked.model_dump(mode="json")})
        return
    console = Console()
    for number, row in enumerate(looked.rows, start=1):
        console.rule(f"row {number}" + (f" · label {row.label}" if row.label is not None else ""), align="left")
        for side in row.sides:
            console.print(_tokens(side), soft_wrap=True)
    console.rule(align="left")
    console.print(_summary(looked), highlight=False)


def _tokens(side: "LookedSide") -> "Text":
    """One text with its tokens in colour; a label that is not the token itself stands behind it."""
    from rich.text import Text

    text = Text(f"{side.name} ({len(side.tokens)} tokens): ", style="dim")
    for token in side.tokens:
        style = LEARNED if token.carries_loss else SPECIAL if token.is_special else PLAIN
        text.append(token.text, style=style)
        if token.label is not None:
            text.append(f"→{token.label} ", style="cyan")
    if side.padding:
        text.append(f" +{side.padding} padding", style="dim")
    return text


def _summary(looked: "Look") -> str:
    columns = ", ".join(f"{part} = {column}" for part, column in looked.fields.items())
    lines = [
        f"{looked.workload} on {looked.format}" + (f" ({columns})" if columns else ""),
        f"{looked.train_samples:,} samples to train on, {looked.validation_samples:,} to watch, "
        f"{looked.test_samples:,} to test on; {looked.mean_tokens:.0f} tokens in the mean",
    ]
    if looked.at_limit:
        lines.append(f"{looked.at_limit:,} samples fill batch.sequence_length and may have been cut")
    if looked.loss_share:
        lines.append(f"{looked.loss_share:.0%} of the tokens shown carry loss (green)")
    return "\n".join([*lines, *looked.notes])
