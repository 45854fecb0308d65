"""`forerun plan --gpus`: how many GPUs, in which layout, and the job that starts them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import EXIT_DOES_NOT_FIT, ledger_if_any, ledger_url, print_json
from forerun.cli.output import print_view
from forerun.cli.plan_files import default_path, without_detail, write_plan
from forerun.current_work import work
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.plan.choose import PlanLimits
    from forerun.settings.schema import Settings

GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="NUMBERS", help="Search layouts of 8..1024 (doublings), 8,24 or 64 GPUs."),
]
WorkersOption = Annotated[
    str, typer.Option("--workers", metavar="N", help="With --gpus: processes side by side; auto, or ray.")
]


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the command line."""

    gpu_names: list[str]
    gpus: str
    workers: str
    script: str | None
    write: Path | None
    limits: "PlanLimits"
    as_json: bool


def plan_cluster(settings: "Settings", options: ClusterOptions, others: Sequence[str] = ()) -> None:
    """Plan, print and write; `others` are options that were named and do not go with `--gpus`."""
    from rich.console import Console

    from forerun.api import find_device, plan_cluster_settings
    from forerun.plan.cluster_launchers import cluster_script, require_kind
    from forerun.plan.layouts import counts_of
    from forerun.report.cluster_plan import cluster_plan_view

    device, counts = find_device(_one_gpu(options, others)), counts_of(options.gpus)
    if options.script is not None:
        require_kind(options.script)
    with ledger_if_any() as ledger, work("planning") as say:
        document = plan_cluster_settings(
            settings, device, counts, None if ledger is None else ledger_url(), limits=options.limits,
            workers=options.workers, on_progress=lambda what: say(f"planning: {what}"),
        )  # fmt: skip
    planned = document.plan
    path = options.write or default_path(planned)
    where = write_plan(planned, path)
    has_job = options.script is not None and planned.meets_limits
    job = {"script": cluster_script(planned, options.script or "", path)} if has_job else {}
    if options.as_json:
        print_json(without_detail(document.model_dump(mode="json", by_alias=True)) | job)
    elif job:
        typer.echo(job["script"], nl=False)
    else:
        print_view(cluster_plan_view(document))
    if where is not None:
        Console(stderr=True).print(where, soft_wrap=True, highlight=False, markup=False)
    if not planned.meets_limits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _one_gpu(options: ClusterOptions, others: Sequence[str]) -> str:
    """The GPU to search layouts of.

    Raises:
        InvalidSettings: several, the CPU, or options that plan other things.
    """
    if others:
        raise InvalidSettings(f"plan --gpus searches layouts of one GPU; found {', '.join(others)} too. Leave one out.")
    if len(options.gpu_names) > 1 or options.gpu_names[0].lower() == "cpu":
        raise InvalidSettings(
            f"plan --gpus searches layouts of one GPU of the catalogue; found {', '.join(options.gpu_names)}. Plan "
            f"each by itself."
        )
    return options.gpu_names[0]
