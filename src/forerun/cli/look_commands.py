"""Commands that look at the machine and the catalogue: `gpus`, `doctor`, `calibrate`, `recipes`, `copy`."""

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import JsonOption, ledger_url, print_json
from forerun.errors import InvalidSettings

RECIPES_SCHEMA = "forerun.recipes/1"
PRECISIONS_SCHEMA = "forerun.precisions/1"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (gpus, doctor, calibrate, recipes, copy):
        app.command()(command)


def gpus(as_json: JsonOption = False) -> None:
    """List the GPU catalogue: memory, bandwidth, dense peaks, price."""
    from forerun.hardware.catalogue import devices
    from forerun.report.hardware_tables import gpus_json, gpus_table

    if as_json:
        print_json(gpus_json(devices()))
    else:
        _show(gpus_table(devices()))


def doctor(
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="MODEL", help="Train MODEL for a few steps in each precision.")
    ] = None,
    micro_batch_size: Annotated[int, typer.Option("--micro-batch-size", min=1, help="Samples, for --benchmark.")] = 8,
    lengths: Annotated[
        list[int] | None, typer.Option("--sequence-length", min=1, help="Tokens, for --benchmark; repeat.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the device here, what it can do, and what is missing; or which precision a model should train in."""
    if benchmark is not None:
        _benchmark(benchmark, micro_batch_size, lengths or [128], as_json)
        return
    from forerun.hardware.doctor import examine
    from forerun.report.hardware_tables import doctor_json, doctor_view

    report = examine(ledger=ledger_url())
    if as_json:
        print_json(doctor_json(report))
    else:
        _show(doctor_view(report))


def _benchmark(model: str, micro_batch_size: int, lengths: list[int], as_json: bool) -> None:
    from rich.console import Console

    from forerun.cli.options import ledger_if_any
    from forerun.hardware.detect import detect
    from forerun.report.precisions import precision_view
    from forerun.verify.precision_benchmark import benchmark_precisions

    with ledger_if_any() as ledger, Console(stderr=True).status("") as status:
        found = benchmark_precisions(
            model, detect().device, ledger, micro_batch_size=micro_batch_size, lengths=lengths,
            on_progress=lambda what: status.update(f"training in {what}"),
        )  # fmt: skip
    if as_json:
        print_json({"schema": PRECISIONS_SCHEMA, **found.model_dump(mode="json")})
    else:
        title = f"{found.model}, micro-batch {found.micro_batch_size}, on {found.gpu}"
        _show(precision_view(title, found.rows, found.recommendation))


def calibrate(as_json: JsonOption = False) -> None:
    """Measure the device here in under 30 seconds, and use that in later forecasts for it."""
    from rich.console import Console

    from forerun.hardware.calibrate import calibrate as measure
    from forerun.hardware.detect import detect
    from forerun.ledger.store import open_ledger
    from forerun.report.calibration import calibration_table

    with open_ledger(ledger_url()) as ledger, Console(stderr=True).status("") as status:
        found = detect()
        before = ledger.calibration(found.device.name)
        now = measure(found, Path.cwd(), lambda what: status.update(f"measuring {what}"))
        ledger.record_calibration(now)
    if as_json:
        print_json(now)
    else:
        _show(calibration_table(now, before, found.device))


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
    _show(table)


def copy(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
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


def _show(view: object) -> None:
    from rich.console import Console

    Console().print(view)
