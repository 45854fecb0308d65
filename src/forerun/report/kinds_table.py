"""Ranks of a job that differ, such as the stages of a pipeline, as a terminal table."""

from collections.abc import Sequence

from rich.table import Table

from forerun.records import RankKind
from forerun.units import format_bytes, format_seconds


def kinds_table(kinds: Sequence[RankKind]) -> Table:
    """A row for each kind; the job's forecast is that of the one which needs most of the device."""
    columns = "ranks", "stage", "allocated", "reserved", "device", "compute", "exposed", "bubble"
    title = "Kinds of rank; the forecast is that of the one that needs most memory"
    table = Table(*columns, title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for each in kinds:
        sizes = (each.peak_allocated_bytes, each.peak_reserved_bytes, each.device_bytes)
        waits = (each.exposed_communication_seconds, each.bubble_seconds)
        stages = ", ".join(map(str, each.stages))
        table.add_row(
            each.ranks, stages, *map(format_bytes, sizes), format_seconds(each.compute_seconds),
            *("" if wait is None else format_seconds(wait) for wait in waits),
        )  # fmt: skip
    return table
