"""`forerun init`: from a file of data to settings that can be forecast and run; the data are never changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, print_json

if TYPE_CHECKING:
    from forerun.runs.data_proposal import DataProposal

SCHEMA = "forerun.init/1"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="init")(init)


def init(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A file, a folder of files, or a hub id.")],
    task: Annotated[str | None, typer.Option("--task", metavar="WORKLOAD", help="What to train, where known.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model to begin with.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="Catalogue name, or cpu; the device here by default.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Settings file to write.")] = Path("run.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the settings file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at DATA, and write settings for training on it with the forecast beside it."""
    from forerun.data.own.formats import require_workload

    require_workload(task)  # before anything that takes seconds

    from rich.console import Console

    from forerun.api import find_device, forecast_settings
    from forerun.errors import InvalidSettings
    from forerun.hardware.detect import detect
    from forerun.own.chat_lengths import chat_lengths
    from forerun.runs.data_proposal import propose, yaml_text

    if to.exists() and not force:
        raise InvalidSettings(f"--to: {to} exists, and would be lost. Name another file, or add --force.")
    device = detect().device if gpu is None else find_device(gpu)
    log = Console(stderr=True).print
    proposal = propose(
        data, device, forecast_settings, count_chats=chat_lengths, task=task, model=model,
        on_progress=lambda what: log(what),
    )  # fmt: skip
    text = yaml_text(proposal, f"forerun init {data}")
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"--to: {to} cannot be written: {error.strerror}. Name another file.") from error
    if as_json:
        print_json(_document(proposal, to))
    else:
        _show(proposal, data, to)


def _show(proposal: "DataProposal", data: str, to: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    from forerun.report.own_data import inspection_tables
    from forerun.runs.data_proposal import forecast_line

    console = Console()
    console.print(inspection_tables(proposal.inspection, data))
    console.print(Text(f"\nA row is {proposal.meaning}."), soft_wrap=True)
    console.print(Text(f"{proposal.content['workload']} with {proposal.content['model']['name']}: "
                       f"{proposal.reasons['model.name']}"), soft_wrap=True)  # fmt: skip
    length = proposal.content["batch"]["sequence_length"]
    console.print(Text(f"{length:,} tokens a sample: {proposal.reasons['batch.sequence_length']}"), soft_wrap=True)
    if proposal.better:
        console.print(Text(f"Better: {proposal.better}"), soft_wrap=True)
    console.print(Text(forecast_line(proposal), style="bold"), soft_wrap=True)
    for question in proposal.questions:
        console.print(
            Text(f"Question ({question.setting}): {question.text} Default: {question.default}"), soft_wrap=True
        )
    stop = next((finding for finding in proposal.inspection.findings if finding.weight == "stop"), None)
    first = "" if stop is None else f"First, before a run is worth it: {stop.text} {stop.remedy} "
    then = "forerun init again" if stop else f"forerun forecast {to}, then forerun run {to}"
    console.print(Text(f"Wrote {to}. {first}{'Then' if stop else 'Next'}: {then}"), soft_wrap=True)


def _document(proposal: "DataProposal", to: Path) -> dict:
    forecast = proposal.forecast
    return {
        "schema": SCHEMA,
        "file": str(to),
        "settings": dict(proposal.content),
        "reasons": dict(proposal.reasons),
        "questions": [
            {"setting": q.setting, "question": q.text, "default": q.default, "others": list(q.others)}
            for q in proposal.questions
        ],
        "better_model": proposal.better,
        "inspection": proposal.inspection.model_dump(mode="json"),
        "forecast": None
        if forecast is None
        else {
            "gpu": proposal.device,
            "fits": forecast.fits,
            "device_bytes": forecast.memory.device_bytes.model_dump(mode="json"),
            "step_seconds": forecast.step.seconds.model_dump(mode="json"),
            "run_seconds": forecast.run.seconds.model_dump(mode="json"),
            "cost": forecast.run.cost,
        },
        "no_forecast": proposal.no_forecast,
    }
