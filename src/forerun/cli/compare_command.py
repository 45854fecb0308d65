"""`forerun compare`: one run on every GPU of the catalogue, by time and cost."""

from typing import Annotated

import typer

from forerun.cli.options import (
    EXIT_DOES_NOT_FIT,
    BudgetOption,
    CloudOption,
    DeadlineOption,
    GpuOption,
    JsonOption,
    SetOption,
    TargetArgument,
    gpu_names,
    ledger_if_any,
    limits_of,
    print_json,
    say_note,
    uncollected,
)
from forerun.cli.output import print_view, with_format
from forerun.current_work import work

PriceOption = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=DOLLARS", help="Price per hour of a GPU; repeat.")
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="compare")(compare)


@with_format
def compare(
    target: TargetArgument,
    gpu: GpuOption = None,
    deadline: DeadlineOption = None,
    budget: BudgetOption = None,
    price: PriceOption = None,
    cloud: CloudOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time and cost of a run on many GPUs. Exit code 3: none keeps the limits.

    Without --gpu: those that are rented out, with a price, or those of --cloud. --gpu takes groups besides names:
    rented, consumer, workstation, datacenter, slices, amd, all.
    """

    with uncollected():
        from forerun.api import compare_settings, find_device, resolve
        from forerun.forecasting.apart import only_forecasts
        from forerun.hardware.catalogue import group_of_devices
        from forerun.hardware.list_prices import rented_from
        from forerun.plan.limits import priced
        from forerun.report.compare import comparison_view

    only_forecasts()
    limits, settings = limits_of(deadline, budget), resolve(target, overrides or ())
    selection = {}
    for name in gpu_names(gpu, default="rented" if cloud is None else "all"):
        rows = group_of_devices(name) or [find_device(name)]
        selection |= {row.name: row for row in rows}
    offers = list(selection.values()) if cloud is None else rented_from(cloud, list(selection.values()))
    if gpu and len(offers) < len(selection):
        missing = ", ".join(sorted(selection.keys() - {device.name for device in offers}))
        say_note(f"--cloud: no price is known at {cloud} of {missing}, left out.")
    devices = priced(offers, price or [])
    names = [device.name for device in devices]
    with ledger_if_any(names) as ledger, work("comparing") as say:

        def on_progress(what: str) -> None:
            say(f"comparing: {what}")

        comparison = compare_settings(settings, devices, ledger, limits=limits, on_progress=on_progress)
    if as_json:
        print_json(comparison)
    else:
        print_view(comparison_view(comparison))
    if comparison.chosen is None:
        raise typer.Exit(EXIT_DOES_NOT_FIT)
