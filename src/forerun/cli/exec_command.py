"""`forerun exec`: forecast an unmodified training program from a run of it on a virtual GPU."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.file_wall import hand_out, is_inside
from forerun.cli.options import (
    EXIT_DOES_NOT_FIT,
    NOT_IN_DOCUMENT,
    CloudOption,
    GpuOption,
    JsonOption,
    at_prices_of,
    gpu_names,
    ledger_if_any,
    print_json,
    usual_gpu,
)
from forerun.cli.output import print_view, with_format

if TYPE_CHECKING:
    from forerun.forecasting.program import ProgramForecast
    from forerun.forecasting.whole_job import JobRequest
    from forerun.hardware.catalogue import Device
    from forerun.virtual.cuda.file_layer import WrittenFiles
    from forerun.virtual.cuda.launchers import Program
    from forerun.virtual.cuda.run import ProgramRun

COMPARISON_SCHEMA = "forerun.comparison/1"
KINDS = "kinds"
"""The value of `--rank` that asks for one rank of each kind."""


RanksOption = Annotated[int | None, typer.Option("--nproc-per-node", min=1, help="Ranks on each machine.")]
GpusOption = Annotated[
    int | None, typer.Option("--gpus", min=1, help="GPUs that one process drives by itself (device_map, cuda:1).")
]
PriceOption = Annotated[float | None, typer.Option("--price", min=0, help="Price per hour of one device, in dollars.")]
NetworkOption = Annotated[
    str | None, typer.Option("--network", help="What joins machines: `forerun networks`, or a file of nccl-tests.")
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="exec", context_settings={"allow_interspersed_args": False})(execute)


@with_format
def execute(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="python train.py …, torchrun …, …")],
    gpu: GpuOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Optimizer steps to run; default: until they repeat.")
    ] = None,
    total_steps: Annotated[
        int | None, typer.Option("--total-steps", min=1, help="Optimizer steps of the whole run, where nobody says.")
    ] = None,
    nproc_per_node: RanksOption = None,
    nnodes: Annotated[int | None, typer.Option("--nnodes", min=1, help="Machines.")] = None,
    gpus: GpusOption = None,
    network: NetworkOption = None,
    rank: Annotated[
        str, typer.Option("--rank", help="Ranks to run: kinds (one of each), numbers, first, middle, last; by commas.")
    ] = "kinds",
    price: PriceOption = None,
    cloud: CloudOption = None,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Let the program write its files; else they are thrown away.")
    ] = False,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="FILE", help="Write a file for pytorch.org/memory_viz.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto (ui.perfetto.dev).")
    ] = None,
    as_html: Annotated[bool, typer.Option("--html", help="Write a page under runs/; its path is on stderr.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a training program, unmodified, on a virtual GPU and forecast it. Exit code 3: it does not fit."""
    from forerun.cli.exec_ranks import forecast_ranks, ranks_of
    from forerun.forecasting.whole_job import JobRequest
    from forerun.hardware.catalogue import device
    from forerun.virtual.cuda.launchers import parse_command

    devices = at_prices_of(cloud, price, [device(name) for name in gpu_names(gpu, default=usual_gpu)])
    program = replace(parse_command(command, nproc_per_node, nnodes, gpus), network=_network(network))
    exports = _Exports(
        _writable(snapshot, "--snapshot"), _writable(trace, "--trace"), _page_folder() if as_html else None
    )
    ranks = [] if rank == KINDS else ranks_of(rank, program.world_size)
    if len(ranks) > 1:
        exports.refuse_several_ranks(devices)
        numbers = {"--steps": steps, "--total-steps": total_steps, "--price": price, "--cloud": cloud}
        numbers |= {"--nproc-per-node": nproc_per_node, "--nnodes": nnodes, "--network": program.network}
        largest = forecast_ranks(command, ranks, numbers | {"--gpu": devices[0].name})
        _show([largest], as_json)
        return _leave([largest], largest.script.exit_code, largest.out_of_memory is not None)
    with _own_output() if as_json else contextlib.nullcontext():
        request = JobRequest(devices, steps, total_steps, price, _files(keep_files))
        forecasts, run = _run(program, command, request, ranks[0] if ranks else None)
    forecasts = _with_experience(forecasts)
    if run.error:
        print(run.error, file=sys.stderr)
    _show(forecasts, as_json)
    exports.write(forecasts, run, device(forecasts[0].gpu), program.target)
    return _leave(forecasts, run.exit_code, run.out_of_memory is not None)


def _files(is_kept: bool) -> "WrittenFiles":
    from forerun.virtual.cuda.file_layer import WrittenFiles

    if is_kept:
        return WrittenFiles.KEPT
    return WrittenFiles.VIEW if is_inside() else WrittenFiles.LAYER


def _network(choice: str | None) -> str | None:
    """The network as it was named, or the whole path of a file, since the folder may change; before the program runs.

    Raises:
        UnknownNetwork: neither a name of the catalogue nor a file.
        BadData: the file is no nccl-tests output.
    """
    from forerun.network.catalogue import network
    from forerun.network.nccl_tests import read_nccl_tests

    if choice is None:
        return None
    path = Path(choice)
    if path.is_file():
        read_nccl_tests(path)
        return str(path.absolute())
    return network(choice).name


def _run(
    program: "Program", command: list[str], request: "JobRequest", rank: int | None
) -> "tuple[list[ProgramForecast], ProgramRun]":
    """Run one rank, or where none is named one of each kind."""
    from forerun.forecasting.whole_job import forecast_job, forecast_rank, results_of
    from forerun.virtual.cuda.peers import leave_result

    if rank is None:
        return forecast_job(program, command, request)
    forecasts, run = forecast_rank(program, command, request, rank, None)
    leave_result(rank, results_of(forecasts, run).model_dump_json())
    return forecasts, run


def _leave(forecasts: "list[ProgramForecast]", exit_code: int, is_full: bool) -> None:
    """End with the program's own code, or with that of what does not fit."""
    if exit_code and not is_full:
        raise typer.Exit(exit_code)
    if not any(forecast.fits for forecast in forecasts):
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _show(forecasts: "list[ProgramForecast]", as_json: bool) -> None:

    from forerun.report.program import program_tables

    if as_json:
        documents = [f.model_dump(mode="json", by_alias=True, exclude=NOT_IN_DOCUMENT) for f in forecasts]
        print_json(documents[0] if len(documents) == 1 else {"schema": COMPARISON_SCHEMA, "forecasts": documents})
    else:
        print_view(*program_tables(forecasts, Path.cwd().name))


def _with_experience(forecasts: "list[ProgramForecast]") -> "list[ProgramForecast]":
    """The forecasts with what users measured of the program, where there is a ledger."""
    from forerun.verify.program_experience import with_program_experience

    with ledger_if_any() as ledger:
        return forecasts if ledger is None else [with_program_experience(each, ledger) for each in forecasts]


@dataclass(frozen=True)
class _Exports:
    """Files to write of a program; absolute, because the program may change its folder."""

    snapshot: Path | None
    trace: Path | None
    pages: Path | None

    def refuse_several_ranks(self, devices: "list[Device]") -> None:
        """Files are of one rank.

        Raises:
            InvalidSettings: several cards, or a file, are asked for with several ranks.
        """
        from forerun.errors import InvalidSettings

        if len(devices) > 1 or any(path is not None for path in (self.snapshot, self.trace, self.pages)):
            raise InvalidSettings("--rank: several ranks need one --gpu, and no --html, --snapshot or --trace.")

    def write(self, forecasts: "list[ProgramForecast]", run: "ProgramRun", device: "Device", target: str) -> None:
        """Write what was asked for; the paths go to stderr.

        Raises:
            FilesNotWritten: the disk is full, or it may not be written.
        """
        from forerun.errors import FilesNotWritten

        try:
            self._write(forecasts, run, device, target)
        except OSError as error:
            raise FilesNotWritten(f"{error.filename or 'An export'} cannot be written: {error.strerror}.") from error

    def _write(self, forecasts: "list[ProgramForecast]", run: "ProgramRun", device: "Device", target: str) -> None:
        from forerun.forecasting.program import deciding_card
        from forerun.forecasting.program_account import account_of
        from forerun.memory.snapshot_file import snapshot_of, write_snapshot
        from forerun.report.chrome_trace import write_chrome_trace
        from forerun.report.program_page import render_program_page

        account = account_of(run, device, forecasts[0].script.command, deciding_card(forecasts[0]))
        if self.snapshot is not None:
            write_snapshot(self.snapshot, snapshot_of(account.history, account.trace, account.host_seconds))
        if self.trace is not None:
            write_chrome_trace(self.trace, account)
        page = None
        if self.pages is not None:
            name = f"exec-{Path(target).stem}-{forecasts[0].settings_hash[:8]}"
            page = self.pages / name / "report.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(render_program_page(forecasts, account), encoding="utf-8")
        for path in (self.snapshot, self.trace, page):
            if path is not None:
                hand_out(path)
                print(f"Wrote {path}: {device.name}.", file=sys.stderr)


def _writable(path: Path | None, option: str) -> Path | None:
    """The absolute path of a file that can be written; found out before the program runs.

    Raises:
        InvalidSettings: there is no such folder, or it is a folder itself.
    """
    from forerun.errors import InvalidSettings

    if path is None:
        return None
    whole = path.absolute()
    if whole.is_dir() or not whole.parent.is_dir():
        problem = "is a folder" if whole.is_dir() else f"would be in {whole.parent}, which is no folder"
        raise InvalidSettings(f"{option} {path} {problem}. Give a file in a folder that exists.")
    return whole


def _page_folder() -> Path:
    from forerun.runs.run import RUNS_FOLDER

    return RUNS_FOLDER.absolute()


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
