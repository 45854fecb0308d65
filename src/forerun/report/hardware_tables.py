"""What do `forerun gpus` and `forerun doctor` show? Records in; rich tables and JSON documents out.

The tables fit 80 columns. GiB and decimal GB/s and TFLOP/s are for the eye; the JSON documents keep bytes, bytes per
second and FLOP per second, and the source of every number.
"""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.hardware.catalogue import Device
from forerun.hardware.detect import DetectedDevice
from forerun.hardware.doctor import DoctorReport
from forerun.hardware.stored_prices import CloudPrice
from forerun.units import GIB, GIGA, TERA, format_bytes

GPUS_SCHEMA = "forerun.gpus/1"
DOCTOR_SCHEMA = "forerun.doctor/1"

PEAK_COLUMNS = (
    ("fp32", "float32"),
    ("tf32", "tfloat32"),
    ("fp16", "float16"),
    ("bf16", "bfloat16"),
    ("fp8", "float8"),
    ("int8", "int8"),
)
"""Heading of a column → name of its torch dtype."""

DERIVED = {"memory_bytes", "peak_flops_per_second", "bandwidth_bytes_per_second", "sm_count"}
"""Fields whose rows are marked where a rule made their number."""
GPUS_CAPTION = (
    "GiB: memory that CUDA reports. Peaks: dense TFLOP/s, accumulating in float32 (int8: TOP/s). cc: compute "
    "capability. $/h: US dollars for one card on demand, as of the month beside it. *: worked out by rules from "
    "specifications. --json adds the sources, and slices in MIG mode; forerun prices lists what each cloud asks."
)


def gpus_table(devices: Sequence[Device]) -> Table:
    """The catalogue as a table of at most 80 columns."""
    peak_headings = (heading for heading, _ in PEAK_COLUMNS)
    table = _table("GPU", "GiB", "GB/s", *peak_headings, "cc", "$/h", "as of", gap=0)
    table.caption = GPUS_CAPTION
    table.caption_justify = "left"
    for column in table.columns[1:]:
        column.justify = "right"
    for device in devices:
        table.add_row(*_gpu_cells(device))
    return table


PRICES_CAPTION = (
    "US dollars for one GPU an hour, the least of each cloud's machines and regions that the source has; as of the day "
    "of that list. No discounts, taxes, disks or traffic. --json adds the sources; --cloud CLOUD of forecast, exec and "
    "compare takes one; prices update reads today's."
)


def prices_table(prices: Sequence[CloudPrice]) -> Table:
    """What clouds ask for one GPU an hour, and when that was read."""
    table = _table("GPU", "cloud", "$/h", "spot", "machine (GPUs)", "region", "as of")
    table.caption = PRICES_CAPTION
    table.caption_justify = "left"
    for price in prices:
        spot = "-" if price.spot_dollars_per_hour is None else f"{price.spot_dollars_per_hour:.2f}"
        table.add_row(
            price.gpu, price.cloud, f"{price.dollars_per_hour:.2f}", spot, price.machine, price.region or "-",
            price.date or "-",
        )  # fmt: skip
    return table


def _gpu_cells(device: Device) -> list[str]:
    peaks = device.peak_flops_per_second
    return [
        f"{device.name}{'*' if DERIVED & set(device.derived_fields) else ''}",
        f"{device.memory_bytes / GIB:.1f}",
        _number(device.bandwidth_bytes_per_second, GIGA),
        *(_number(peaks.get(dtype), TERA) for _, dtype in PEAK_COLUMNS),
        ".".join(map(str, device.compute_capability or ())) or "-",
        "-" if device.price_per_hour is None else f"{device.price_per_hour:.2f}",
        (device.price_date or "-")[:7],
    ]


def _number(value: float | None, unit: float) -> str:
    """A value in a unit, in at most four characters; a dash where there is none."""
    if value is None:
        return "-"
    scaled = value / unit
    return f"{scaled:.1f}" if scaled < 100 else f"{scaled:.0f}"


def gpus_json(devices: Sequence[Device]) -> dict[str, Any]:
    """The catalogue as a JSON document, sources included."""
    rows = [
        {
            **device.model_dump(mode="json", exclude={"isa_flags"}),
            "has_bf16": device.has_bf16,
            "derived": list(device.derived_fields),
        }
        for device in devices
    ]
    return {"schema": GPUS_SCHEMA, "gpus": rows}


def doctor_view(report: DoctorReport) -> RenderableType:
    """The report as tables of at most 80 columns, problems last."""
    blank = Text()
    tables = _machine_table(report), blank, _precision_table(report), blank, _part_table(report)
    return Group(*tables, blank, _problem_table(report))


def doctor_json(report: DoctorReport) -> dict[str, Any]:
    """The report as a JSON document."""
    return {"schema": DOCTOR_SCHEMA, "ready": report.is_ready, **report.model_dump(mode="json")}


def machine_facts(report: DoctorReport) -> list[tuple[str, str]]:
    """Facts about the machine as pairs of name and value."""
    detected = report.device
    facts = [
        ("device", f"{detected.device.name}: {detected.reported_name}"),
        ("memory", _of(detected.memory.available_bytes, detected.memory.total_bytes)),
        ("cores", f"{detected.cores.usable} usable of {detected.cores.logical}; {detected.threads} threads"),
        ("instructions", ", ".join(detected.isa_flags) or "none of those that matter"),
        ("free disk", f"{format_bytes(report.disk_free_bytes)} at {report.folder}"),
        ("home", f"{report.home}{'' if report.home_is_writable else ' (cannot be written)'}"),
        ("ledger", report.ledger or "default"),
        *([("traces", report.traces)] if report.traces is not None else []),
        ("versions", ", ".join(f"{name} {version}" for name, version in detected.versions.items())),
    ]
    return facts if detected.kind == "cpu" else [*facts[:2], *_cuda_facts(detected), *facts[2:]]


def _cuda_facts(detected: DetectedDevice) -> list[tuple[str, str]]:
    host = detected.host_memory
    return [
        ("host memory", _of(host.available_bytes, host.total_bytes)),
        ("driver", f"{detected.driver_version or 'unknown'}, CUDA {detected.cuda_version or 'unknown'}"),
    ]


def _of(available_bytes: int, total_bytes: int) -> str:
    return f"{format_bytes(available_bytes)} free of {format_bytes(total_bytes)}"


def _machine_table(report: DoctorReport) -> Table:
    table = _table("this machine", "")
    for name, value in machine_facts(report):
        table.add_row(name, Text(value))
    return table


def _precision_table(report: DoctorReport) -> Table:
    table = _table("precision", "usable", "why not")
    for verdict in report.precisions:
        table.add_row(verdict.precision, "yes" if verdict.usable else "no", Text(verdict.reason))
    return table


def _part_table(report: DoctorReport) -> Table:
    table = _table("optional part", "version", "enables", "install")
    for part in report.parts:
        # Text, not str: rich would read the [extra] of an install command as markup.
        install = Text("" if part.is_installed else part.install)
        table.add_row(part.package, part.version or "-", Text(part.enables), install)
    return table


def _problem_table(report: DoctorReport) -> RenderableType:
    if report.is_ready:
        return Text("No problems found.")
    table = _table("problem", "remedy")
    for problem in report.problems:
        table.add_row(Text(problem.what), Text(problem.remedy))
    return table


def _table(*headings: str, gap: int = 1) -> Table:
    """An empty table; columns stand `gap` + 1 blanks apart."""
    table = Table(box=SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    return table
