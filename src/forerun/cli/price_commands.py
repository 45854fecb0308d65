"""`prices`: what clouds ask for GPUs; `prices update` reads today's, which forecasts then take."""

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, print_json, say_note
from forerun.cli.output import print_view, with_format

if TYPE_CHECKING:
    from forerun.hardware.stored_prices import StoredPrices

PRICES_SCHEMA = "forerun.prices/1"
MOST_NAMED = 8
prices_app = typer.Typer(help="What clouds ask for GPUs: those stored by the last update; prices update reads today's.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(prices_app, name="prices")


@prices_app.callback(invoke_without_command=True)
@with_format
def prices(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="GPU", help="Only prices of this GPU.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the prices of the last update, by GPU and cloud."""
    if context.invoked_subcommand is not None:
        return
    from forerun.errors import BadData
    from forerun.hardware.catalogue import device
    from forerun.hardware.stored_prices import stored_prices

    stored = stored_prices()
    if stored is None:
        raise BadData(
            "prices: stored by an update; found none. forerun prices update reads today's; until then those of the "
            "catalogue are taken (forerun gpus)."
        )
    _show(stored, None if gpu is None else device(gpu).name, as_json)


@prices_app.command()
@with_format
def update(
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="An address or a folder laid out as SkyPilot's catalogue."),
    ] = None,
    cloud: Annotated[
        list[str] | None, typer.Option("--cloud", metavar="CLOUD", help="Read these clouds alone; repeat.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read what clouds ask today and store it. Needs a network, or a folder with --from."""
    from forerun.hardware.price_update import CLOUDS, SOURCE, update_prices

    result = update_prices(source or SOURCE, cloud or CLOUDS)
    for name, cause in result.unread.items():
        say_note(f"prices: {name} was left out: {cause}")
    if result.unknown:
        names = ", ".join(name for name, _ in result.unknown.most_common(MOST_NAMED))
        say_note(f"prices: {len(result.unknown)} names are no GPU of the catalogue, or several: {names}.")
    _show(result.stored, None, as_json)


def _show(stored: "StoredPrices", gpu: str | None, as_json: bool) -> None:
    from forerun.hardware.price_update import prices_of
    from forerun.report.hardware_tables import prices_table

    rows = list(prices_of(stored, gpu))
    if as_json:
        print_json({
            "schema": PRICES_SCHEMA, "date": stored.date, "source": stored.source,
            "prices": [row.model_dump(mode="json") for row in rows],
        })  # fmt: skip
    else:
        print_view(prices_table(rows, stored.date, stored.source))
