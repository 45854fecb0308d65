"""`forerun exec`: forecast an unmodified training program from a run of it on a virtual GPU."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import EXIT_DOES_NOT_FIT, GpuOption, JsonOption, gpu_names, print_json

COMPARISON_SCHEMA = "forerun.comparison/1"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="exec", context_settings={"allow_interspersed_args": False})(execute)


def execute(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="python train.py …, torchrun …, …")],
    gpu: GpuOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Optimizer steps to run; default: until they repeat.")
    ] = None,
    total_steps: Annotated[
        int | None, typer.Option("--total-steps", min=1, help="Optimizer steps of the whole run, where nobody says.")
    ] = None,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", min=1, help="Ranks on each machine.")
    ] = None,
    nnodes: Annotated[int | None, typer.Option("--nnodes", min=1, help="Machines.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="Price per hour of one device, in dollars.")
    ] = None,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Let the program write its files; else they are thrown away.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a training program, unmodified, on a virtual GPU and forecast it. Exit code 3: it does not fit."""
    from rich.console import Console

    from forerun.forecasting.program import forecast_program
    from forerun.hardware.catalogue import device
    from forerun.report.program import program_tables
    from forerun.virtual.cuda.launchers import parse_command

    devices = [device(name) for name in gpu_names(gpu, default="a100-40gb")]
    program = parse_command(command, nproc_per_node, nnodes)
    with _own_output() if as_json else contextlib.nullcontext():
        forecasts, run = forecast_program(
            program, command, devices,
            most_steps=steps, total_steps=total_steps, price_per_hour=price, keep_files=keep_files,
        )  # fmt: skip
    if run.error:
        print(run.error, file=sys.stderr)
    if as_json:
        documents = [f.model_dump(mode="json", by_alias=True, exclude={"detail"}) for f in forecasts]
        print_json(documents[0] if len(documents) == 1 else {"schema": COMPARISON_SCHEMA, "forecasts": documents})
    else:
        for view in program_tables(forecasts, Path.cwd().name):
            Console().print(view)
    if run.exit_code and run.out_of_memory is None:
        raise typer.Exit(run.exit_code)
    if not any(f.fits for f in forecasts):
        raise typer.Exit(EXIT_DOES_NOT_FIT)


@contextlib.contextmanager
def _own_output() -> Iterator[None]:
    """What the program prints goes to stderr, also from below Python: stdout is for the document alone."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
