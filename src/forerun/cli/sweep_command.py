"""`forerun sweep`: several runs of a recipe, forecast together, run one after the other, compared."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_INTERRUPTED,
    JsonOption,
    TargetArgument,
    ThreadsOption,
    complete_gpus,
    gpu_names,
    ledger_url,
    print_json,
    use_threads,
)
from forerun.cli.output import print_view, with_format

if TYPE_CHECKING:
    from forerun.hardware.catalogue import Device
    from forerun.ledger.store import Ledger
    from forerun.records import Forecast
    from forerun.report.tables import ResultCurve, ResultTable
    from forerun.runs.sweep import Sweep, Variant
    from forerun.settings.schema import Settings

SCHEMA = "forerun.sweep/1"
EXIT_NOT_ALL_FINISHED = 4

ListSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=A,B,…", help="A setting and its values; with one value it is shared. Repeat."),
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(sweep)


@with_format
def sweep(
    target: TargetArgument,
    overrides: ListSetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on: take finished runs of these settings.")] = False,
    dry: Annotated[bool, typer.Option("--forecast-only", help="Forecast the variants and stop.")] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="A,B,…",
            help="Forecast for these GPUs instead of the device here, and stop.",
            autocompletion=complete_gpus,
        ),
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run variants of a recipe or own data, each in a process, and compare them. Exit code 4: not all were finished."""
    use_threads(threads)
    from rich.console import Console

    from forerun.api import find_device, resolve
    from forerun.hardware.detect import detect
    from forerun.ledger.store import open_ledger
    from forerun.runs.registry import load_recipe, recipe_names
    from forerun.runs.sweep import make_variants, run_variant

    say = Console(stderr=True).print
    base = resolve(target)
    usual = getattr(load_recipe(base.workload), "VARIANTS", {}) if base.workload in recipe_names() else {}
    variants = make_variants(base, overrides or (), usual)
    devices = [find_device(name) for name in gpu_names(gpu, default="")] if gpu else [detect().device]
    dry = dry or bool(gpu)
    with open_ledger(ledger_url()) as ledger:
        plan = _planned(target, variants, devices, ledger, resume)
        _show([_plan(plan)], on_stderr=as_json)
        if all(planned.state == "does not fit" for planned in plan.planned):
            _finish(plan, ledger, as_json)
            raise typer.Exit(EXIT_DOES_NOT_FIT)
        waiting = [planned for planned in plan.planned if planned.state == "waiting"]
        for number, planned in enumerate(waiting if not dry else [], start=1):
            say(f"[bold]{number} of {len(waiting)}: {planned.variant.name}[/bold]", highlight=False)
            try:
                run_variant(target, planned)
            except KeyboardInterrupt:
                say(f"Stopped. Go on with: forerun sweep {target} … --resume (and the same --set options)")
                raise typer.Exit(EXIT_INTERRUPTED) from None
        _finish(plan, ledger, as_json)
    if not dry and any(planned.state != "finished" for planned in plan.planned):
        typer.echo(unfinished_line(plan), err=True)
        raise typer.Exit(EXIT_NOT_ALL_FINISHED)


def _planned(
    target: str, variants: "list[Variant]", devices: "list[Device]", ledger: "Ledger", resume: bool
) -> "Sweep":
    """Every variant on every device: the variants of one device as runs that can follow, of several side by side."""
    from forerun.api import forecast_on_cards, forecast_settings
    from forerun.runs.sweep import PlannedRun, Sweep, plan_sweep

    if len(devices) > 1:
        return Sweep(
            target,
            [
                PlannedRun(variant, forecast, state="waiting" if forecast.fits else "does not fit")
                for variant in variants
                for forecast in forecast_on_cards(variant.settings, devices, ledger=ledger)
            ],
        )
    timed: dict[Any, float] = {}  # operators that variants share are timed once

    def forecast(settings: "Settings") -> "Forecast":
        return forecast_settings(settings, devices[0], ledger=ledger, timed_calls=timed)

    return plan_sweep(target, variants, forecast, ledger, resume=resume)


def unfinished_line(plan: "Sweep") -> str:
    """One line on the variants that were not finished, each with why."""
    others = [planned for planned in plan.planned if planned.state != "finished"]
    each = "; ".join(f"{p.variant.name} ({p.failure or p.state})" for p in others)
    return f"{len(others)} of {len(plan.planned)} variants were not finished: {each}."


def _plan(plan: "Sweep") -> "ResultTable":
    from forerun.report.sweep import plan_table

    return plan_table([(p.variant.name, p.forecast, p.state) for p in plan.planned], plan.seconds, plan.cost)


def _finish(plan: "Sweep", ledger: "Ledger", as_json: bool) -> None:
    """Print the tables of the finished runs, and write the page."""
    from rich.console import Console

    from forerun.report.sweep import accuracy_table
    from forerun.runs.pages import write_sweep_page
    from forerun.runs.registry import comparison_of
    from forerun.runs.sweep import finished_runs

    runs = finished_runs(plan, ledger)
    tables, curves = [accuracy_table([(run.name, run.forecast, run.measurement) for run in runs])], []
    compare = comparison_of(plan.planned[0].variant.settings)
    if compare is not None and runs:
        more, curves = compare(runs)
        tables += more
    if as_json:
        print_json(_document(plan, tables, curves))
    elif runs:
        _show(tables)
    if runs:
        page = write_sweep_page(plan, [_plan(plan), *tables], curves)
        Console(stderr=True).print(f"Page: {page}", soft_wrap=True, highlight=False)


def _document(plan: "Sweep", tables: "list[ResultTable]", curves: "list[ResultCurve]") -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "variants": [
            {
                "name": planned.variant.name,
                "set": list(planned.variant.overrides),
                "state": planned.state,
                "run_id": planned.run_id,
                "forecast": planned.forecast.model_dump(mode="json", by_alias=True, exclude={"detail"}),
            }
            for planned in plan.planned
        ],
        "seconds_left": plan.seconds,
        "tables": [table.model_dump(mode="json") for table in tables],
        "curves": [curve.model_dump(mode="json") for curve in curves],
    }


def _show(tables: "list[ResultTable]", *, on_stderr: bool = False) -> None:
    from rich.console import Console

    from forerun.report.terminal import result_table

    views = [result_table(table) for table in tables]
    if not on_stderr:
        print_view(*views)
        return
    for view in views:
        Console(stderr=True).print(view)
