"""`prices`: what clouds ask for GPUs; `prices update` reads today's, which forecasts then take."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, print_json, say_note
from forerun.cli.output import print_view, with_format

if TYPE_CHECKING:
    from forerun.hardware.stored_prices import CloudPrice, StoredPrices

PRICES_SCHEMA = "forerun.prices/1"
MOST_NAMED = 8
prices_app = typer.Typer(help="What clouds ask for GPUs, with days and sources; prices update reads today's.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(prices_app, name="prices")


@prices_app.callback(invoke_without_command=True)
@with_format
def prices(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="GPU", help="Only prices of this GPU.")] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", metavar="CLOUD", help="Only prices of this cloud.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List what clouds ask for a GPU: list prices of the catalogue with their days, and those of the last update."""
    if context.invoked_subcommand is not None:
        return
    from forerun.hardware.catalogue import device
    from forerun.hardware.list_prices import cloud_prices
    from forerun.hardware.stored_prices import stored_prices

    _show(cloud_prices(None if gpu is None else device(gpu).name, cloud), stored_prices(), as_json)


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
    _show(sorted(result.stored.prices, key=lambda row: (row.gpu, row.dollars_per_hour)), result.stored, as_json)


def _show(rows: "Sequence[CloudPrice]", last: "StoredPrices | None", as_json: bool) -> None:
    from forerun.report.hardware_tables import prices_table

    if as_json:
        print_json({
            "schema": PRICES_SCHEMA, "date": last and last.date, "source": last and last.source,
            "prices": [row.model_dump(mode="json") for row in rows],
        })  # fmt: skip
    else:
        print_view(prices_table(rows))
