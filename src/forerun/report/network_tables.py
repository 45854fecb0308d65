"""What does `forerun networks` show? Records in; rich tables and a JSON document out.

GB/s are decimal, one direction. The JSON document has bytes per second, and the source of every number.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from forerun.network.catalogue import Fabric, Network
from forerun.network.rates import link_rates, network_rates
from forerun.units import GIGA

NETWORKS_SCHEMA = "forerun.networks/1"
NETWORKS_CAPTION = (
    "GB/s: wire rate of a machine of eight GPUs, one direction. measured: all-reduce was fitted to published timings "
    "of such a network; derived: from NCCL's algorithms and what was published of its rate. --json adds the sources."
)
LINKS_CAPTION = "GB/s: of one GPU, one direction. measured: collectives were fitted to published timings of such links."
MACHINE = 8
Row = TypeVar("Row", Fabric, Network)


def rows_with(text: str | None, rows: Sequence[Row]) -> list[Row]:
    """Rows that contain a text, whatever its case; all without one."""
    return [row for row in rows if text is None or text.lower() in str(row.model_dump()).lower()]


def networks_view(between: Sequence[Network], inside: Sequence[Fabric]) -> RenderableType:
    """Two tables of at most 80 columns."""
    networks = _table("network", "what", "kind", "GB/s", "timings", caption=NETWORKS_CAPTION)
    for row in between:
        rate = row.adapters_of(MACHINE) * row.adapter_bytes_per_second / GIGA
        evidence = "measured" if network_rates(row.kind).measured else "derived"
        networks.add_row(row.name, row.description, row.kind, f"{rate:g}", evidence)
    links = _table("links", "GPUs", "GB/s", "join", "timings", caption=LINKS_CAPTION)
    for row in inside:
        evidence = "measured" if link_rates(row)[1] else "derived"
        joined = "-" if row.domain is None else str(row.domain)
        rate = f"{row.bytes_per_second / GIGA:g}"
        links.add_row(row.name, ", ".join(row.gpus) or "-", rate, joined, evidence)
    return Group(*(table for table in (networks, links) if table.row_count))


def networks_json(between: Sequence[Network], inside: Sequence[Fabric]) -> dict[str, Any]:
    """The rows with what NCCL reaches on them, and every source."""
    return {
        "schema": NETWORKS_SCHEMA,
        "networks": [
            row.model_dump() | {
                "machine_bytes_per_second": row.adapters_of(MACHINE) * row.adapter_bytes_per_second,
                "rates": network_rates(row.kind).model_dump(),
            }
            for row in between
        ],
        "links": [
            row.model_dump() | {"is_measured": link_rates(row)[1], "rates": link_rates(row)[0].model_dump()}
            for row in inside
        ],
    }  # fmt: skip


def _table(*headings: str, caption: str) -> Table:
    table = Table(*headings, box=SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 1, 0, 0))
    table.columns[headings.index("GB/s")].justify = "right"
    return table
