"""`forerun plan`: the settings to run with, why these, and what changes from one GPU to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.cluster_plan import ClusterOptions, GpusOption, WorkersOption, plan_cluster
from forerun.cli.options import (
    EXIT_DOES_NOT_FIT,
    BudgetOption,
    DeadlineOption,
    GpuOption,
    JsonOption,
    SetOption,
    TargetArgument,
    WhatIfOption,
    gpu_names,
    ledger_if_any,
    limits_of,
    print_json,
    usual_gpu,
)
from forerun.cli.output import print_view, with_format
from forerun.cli.plan_files import default_path, without_detail, write_plan
from forerun.current_work import work
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forerun.hardware.catalogue import Device
    from forerun.ledger.store import Ledger
    from forerun.plan.choose import PlanLimits
    from forerun.plan.outcome import Migration, RunPlan
    from forerun.settings.schema import Settings

AllowOption = Annotated[
    list[str] | None, typer.Option("--allow", metavar="WHAT", help="method, global-batch: may change too.")
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="plan")(plan)


@with_format
def plan(
    target: TargetArgument,
    gpu: GpuOption = None,
    before: Annotated[str | None, typer.Option("--from", metavar="NAME", help="GPU that the run is on now.")] = None,
    after: Annotated[str | None, typer.Option("--to", metavar="NAME", help="GPU to move to, with --from.")] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Settings file; default: NAME.plan.yaml here.")
    ] = None,
    deadline: DeadlineOption = None,
    budget: BudgetOption = None,
    allow: AllowOption = None,
    script: Annotated[
        str | None,
        typer.Option(
            "--script", metavar="KIND", help="Print a slurm or skypilot job (--gpus: more) instead of tables."
        ),
    ] = None,
    gpus: GpusOption = None,
    workers: WorkersOption = "auto",
    overrides: SetOption = None,
    what_if: WhatIfOption = False,
    confirmed: Annotated[
        bool, typer.Option("--confirm", help="Run a few real steps of the three best on the device here.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the settings for a run and say why. Exit code 3: nothing fits, or the limits cannot be kept."""

    from forerun.api import resolve
    from forerun.plan.launchers import require_job
    from forerun.plan.limits import allowed
    from forerun.plan.outcome import RunPlan
    from forerun.runs.registry import recipe_names

    limits, words = limits_of(deadline, budget), allowed(allow or [])
    if gpus is not None:
        others = {"--from": before, "--to": after, "--allow": allow, "--what-if": what_if, "--confirm": confirmed}
        options = ClusterOptions(gpu_names(gpu, default=usual_gpu), gpus, workers, script, write, limits, as_json)
        plan_cluster(resolve(target, overrides or ()), options, [name for name, value in others.items() if value])
        return
    devices, settings = _devices(gpu, before, after), resolve(target, overrides or ())
    if confirmed:
        _require_here(devices, before)
    if script is not None:
        require_job(script, settings, recipe_names())
    with ledger_if_any() as ledger, work("planning") as say:

        def on_progress(what: str) -> None:
            say(f"planning: {what}")

        document = _document(settings, devices, before, ledger, limits, words, on_progress)
        if confirmed and isinstance(document, RunPlan) and document.settings is not None:
            document = _confirm(document, settings, ledger, on_progress)
        if what_if:
            document = _with_lines(document, ledger, on_progress)
    _finish(document, write, script, as_json)


def _finish(document: "RunPlan | Migration", write: Path | None, script: str | None, as_json: bool) -> None:
    """Print the document, or its job, and write the settings."""
    from rich.console import Console

    from forerun.plan.outcome import RunPlan

    planned = document if isinstance(document, RunPlan) else document.after
    path = write or default_path(planned)
    job = _job(planned, script, path)
    where = write_plan(planned, path)
    if as_json:
        print_json(without_detail(document.model_dump(mode="json", by_alias=True)) | job)
    elif job:
        typer.echo(job["script"], nl=False)
    else:
        _show(document)
    if where is not None:
        Console(stderr=True).print(where, soft_wrap=True, highlight=False, markup=False)
    if not planned.meets_limits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _devices(gpu: list[str] | None, before: str | None, after: str | None) -> "list[Device]":
    """The GPUs to plan for; the first and the second of a move."""
    from forerun.api import find_device

    if (before is None) != (after is None) or (before is not None and gpu):
        options = " ".join(name for name, value in (("--gpu", gpu), ("--from", before), ("--to", after)) if value)
        raise InvalidSettings(
            f"plan takes --gpu, or --from and --to together; found {options}. "
            f"The file of the settings is named with --write."
        )
    names = gpu_names(gpu, default=usual_gpu) if before is None or after is None else [before, after]
    return [find_device(name) for name in names]


def _require_here(devices: "Sequence[Device]", before: str | None) -> None:
    """Refuse `--confirm`, before anything is planned, where the device here cannot run the steps."""
    from forerun.hardware.detect import detect

    here = detect().device.name
    if before is not None or [device.name for device in devices] != [here]:
        target = "--from and --to" if before is not None else ", ".join(device.name for device in devices)
        raise InvalidSettings(
            f"--confirm runs real steps on the device here, {here}; found {target}. Use --gpu {here}."
        )


def _document(
    settings: "Settings", devices: "Sequence[Device]", before: str | None, ledger: "Ledger | None",
    limits: "PlanLimits", words: list[str], on_progress: "Callable[[str], None]",
) -> "RunPlan | Migration":  # fmt: skip
    from forerun.api import migrate_settings, plan_settings

    if before is None:
        return plan_settings(settings, devices, ledger, limits=limits, allow=words, on_progress=on_progress)
    first, second = devices[0], devices[-1]
    return migrate_settings(settings, first, second, ledger, limits=limits, allow=words, on_progress=on_progress)


def _confirm(
    document: "RunPlan", settings: "Settings", ledger: "Ledger | None", on_progress: "Callable[[str], None]"
) -> "RunPlan":  # fmt: skip
    """The plan after real steps of its best candidates, with the fastest of these chosen."""
    from forerun.api import confirm_plan
    from forerun.hardware.detect import detect

    return confirm_plan(document, settings, detect().device, ledger, on_progress=on_progress)


def _with_lines(
    document: "RunPlan | Migration", ledger: "Ledger | None", on_progress: "Callable[[str], None]"
) -> "RunPlan | Migration":
    """The document with the effect of each single change of the chosen settings."""
    from forerun.api import find_device, what_if_settings
    from forerun.plan.outcome import RunPlan
    from forerun.settings.load import settings_from

    planned = document if isinstance(document, RunPlan) else document.after
    if planned.settings is None or planned.gpu is None:
        return document
    lines = what_if_settings(settings_from(planned.settings), find_device(planned.gpu), ledger, on_progress)
    planned = planned.model_copy(update={"what_if": lines})
    return planned if isinstance(document, RunPlan) else document.model_copy(update={"after": planned})


def _show(document: "RunPlan | Migration") -> None:

    from forerun.plan.outcome import RunPlan
    from forerun.report.plan import migration_view, plan_view

    print_view(plan_view(document) if isinstance(document, RunPlan) else migration_view(document))


def _job(planned: "RunPlan", kind: str | None, path: Path) -> dict[str, str]:
    """The job script under the key `script`, where one was asked for and the plan keeps its limits."""
    from forerun.plan.launchers import script

    return {"script": script(planned, kind, path)} if kind is not None and planned.meets_limits else {}
