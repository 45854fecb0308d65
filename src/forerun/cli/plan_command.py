"""`forerun plan`: the settings to run with, why these, and what changes from one GPU to another."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.options import GpuOption, JsonOption, SetOption, TargetArgument, gpu_names, ledger_if_any, print_json
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.plan.outcome import Migration, Plan

EXIT_DOES_NOT_FIT = 3
DEFAULT_GPU = "a100-40gb"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="plan")(plan)


def plan(
    target: TargetArgument,
    gpu: GpuOption = None,
    before: Annotated[str | None, typer.Option("--from", metavar="NAME", help="GPU that the run is on now.")] = None,
    after: Annotated[str | None, typer.Option("--to", metavar="NAME", help="GPU to move to, with --from.")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Settings file; default: NAME.plan.yaml here.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Longest run: 90s, 30min, 2h, 1h30m.")
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", metavar="DOLLARS", help="Most that it may cost.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="WHAT", help="method, global-batch: may change too.")
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the settings for a run and say why. Exit code 3: nothing fits, or the limits cannot be kept."""
    from rich.console import Console

    from forerun.api import find_device, migrate_settings, plan_settings, resolve
    from forerun.plan.choose import Limits
    from forerun.plan.limits import allowed, budget_of, seconds_of

    limits = Limits(
        None if deadline is None else seconds_of(deadline), None if budget is None else budget_of(budget)
    )  # fmt: skip
    words = allowed(allow or [])
    if (before is None) != (after is None) or (before is not None and gpu):
        found = " ".join(name for name, given in (("--gpu", gpu), ("--from", before), ("--to", after)) if given)
        raise InvalidSettings(
            f"plan takes --gpu, or --from and --to together; found {found}. "
            f"The file of the settings is named with --write."
        )
    names = gpu_names(gpu, default=DEFAULT_GPU) if before is None or after is None else [before, after]
    devices = [find_device(name) for name in names]
    settings = resolve(target, overrides or ())
    with ledger_if_any() as ledger, Console(stderr=True).status("planning") as status:

        def told(what: str) -> None:
            status.update(f"planning: {what}")

        document: Plan | Migration
        if before is None:
            planned = document = plan_settings(settings, devices, ledger, limits=limits, allow=words, told=told)
        else:
            first, second = devices[0], devices[-1]
            document = migrate_settings(settings, first, second, ledger, limits=limits, allow=words, told=told)
            planned = document.after
    where = _write(planned, write)
    if as_json:
        print_json(_without_detail(document.model_dump(mode="json", by_alias=True)))
    else:
        _show(document)
    if where is not None:
        Console(stderr=True).print(where, soft_wrap=True, highlight=False, markup=False)
    if not planned.meets_limits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _show(document: "Plan | Migration") -> None:
    from rich.console import Console

    from forerun.plan.outcome import Plan
    from forerun.report.plan import migration_view, plan_view

    Console().print(plan_view(document) if isinstance(document, Plan) else migration_view(document))


def _write(planned: "Plan", write: Path | None) -> str | None:
    """Write the settings of a plan that keeps its limits; says where, and what it replaces."""
    from forerun.plan.written import write_settings

    if not planned.meets_limits:
        return None
    path = write or Path(f"{_file_name(planned.name)}.plan.yaml")
    replaced = " (an earlier plan there was replaced)" if path.exists() else ""
    write_settings(planned, path, shlex.join(["forerun", *sys.argv[1:]]))
    return f"Settings: {path}{replaced}. Run them with: forerun train {path}"


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name).strip(".") or "run"


def _without_detail(document: dict[str, Any]) -> dict[str, Any]:
    """Forecasts as `forecast --json` prints them."""
    for part in (document, document.get("before"), document.get("after")):
        for name in ("forecast", "given"):
            if isinstance(part, dict) and isinstance(part.get(name), dict):
                part[name].pop("detail", None)
    return document
