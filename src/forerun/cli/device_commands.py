"""Commands about devices: `gpus`, `doctor` and `calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import JsonOption, ledger_url, print_json, say_note
from forerun.cli.output import print_view, with_format
from forerun.current_work import work

PRECISIONS_SCHEMA = "forerun.precisions/1"
WordsArgument = Annotated[list[str] | None, typer.Argument(metavar="[WORDS]...", help="As --search, without quotes.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (gpus, networks, doctor, calibrate):
        app.command()(command)


@with_format
def gpus(
    words: WordsArgument = None,
    search: Annotated[
        str | None,
        typer.Option("--search", metavar="TEXT", help="Only GPUs with these words: a name, a machine of a cloud."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the GPU catalogue: memory, bandwidth, dense peaks, price. Without --search, slices (MIG) are left out."""
    from forerun.hardware.catalogue import devices, searched_devices
    from forerun.report.hardware_tables import gpus_json, gpus_table

    search = _words_of(words, search)
    if search is None:
        rows, note = devices(), ""
    else:
        rows, note = searched_devices(search)
        if note:
            say_note(note)
    if as_json:
        print_json(gpus_json(rows))
    else:
        _show(gpus_table(rows if search is not None else [row for row in rows if row.segment != "slice"]))


@with_format
def networks(
    words: WordsArgument = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Only rows that contain TEXT: a name, cloud or GPU.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List networks between machines and links inside them, for `cluster.network` and `exec --network`."""
    from forerun.network.catalogue import fabrics, networks
    from forerun.report.network_tables import networks_json, networks_view, rows_with

    search = _words_of(words, search)
    between, inside = rows_with(search, networks()), rows_with(search, fabrics())
    if as_json:
        print_json(networks_json(between, inside))
    else:
        _show(networks_view(between, inside))


def _words_of(words: list[str] | None, search: str | None) -> str | None:
    """Words of the command line as --search takes them; both count where both are there."""
    return " ".join([*(words or []), *([search] if search else [])]) or search


@with_format
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
    from forerun.forecasting.traces import describe_traces
    from forerun.hardware.doctor import examine
    from forerun.report.hardware_tables import doctor_json, doctor_view

    report = examine(ledger=ledger_url(), traces=describe_traces())
    if as_json:
        print_json(doctor_json(report))
    else:
        _show(doctor_view(report))


def _benchmark(model: str, micro_batch_size: int, lengths: list[int], as_json: bool) -> None:
    from forerun.cli.options import ledger_if_any
    from forerun.hardware.detect import detect
    from forerun.report.precisions import precision_view
    from forerun.verify.precision_benchmark import benchmark_precisions

    with ledger_if_any() as ledger, work(f"benchmarking {model}") as say:
        result = benchmark_precisions(
            model, detect().device, ledger, micro_batch_size=micro_batch_size, lengths=lengths,
            on_progress=lambda what: say(f"{model}: {what}"),
        )  # fmt: skip
    if as_json:
        print_json({"schema": PRECISIONS_SCHEMA, **result.model_dump(mode="json")})
    else:
        title = f"{result.model}, micro-batch {result.micro_batch_size}, on {result.gpu}"
        _show(precision_view(title, result.rows, result.recommendation))


@with_format
def calibrate(as_json: JsonOption = False) -> None:
    """Measure the device here in under 30 seconds, and use that in later forecasts for it."""

    from forerun.hardware.calibrate import calibrate as measure
    from forerun.hardware.detect import detect
    from forerun.ledger.store import open_ledger
    from forerun.report.calibration import calibration_table

    with open_ledger(ledger_url()) as ledger, work("measuring this device") as say:
        detected = detect()
        before = ledger.calibration(detected.device.name)
        now = measure(detected, Path.cwd(), lambda what: say(f"measuring {what}"))
        ledger.record_calibration(now)
    if as_json:
        print_json(now)
    else:
        _show(calibration_table(now, before, detected.device))


def _show(view: object) -> None:

    print_view(view)
