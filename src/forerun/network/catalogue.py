"""Which links join GPUs inside a machine and which network joins machines? Rows of `networks.toml`, each with its
source.

Input: a name ("ib-ndr400"), or a mapping of the user's own. Output: frozen records in bytes per second. What NCCL
achieves on them is not here but in `rates.py`.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field, ValidationError

from forerun.errors import InvalidSettings, UnknownNetwork, nearest
from forerun.hardware.catalogue import devices_named
from forerun.records import Record
from forerun.units import GIGA, MICRO

BITS = 8
NetworkKind = Literal["infiniband", "roce", "efa", "tcpx", "tcp"]
OTHERS_USE = "ethernet-25g"
"""Taken, with a warning, where a GPU has no usual network: what an ordinary rented machine has at least."""


class Fabric(Record):
    """Links among the GPUs of one machine, or of one NVLink domain."""

    name: str
    family: Literal["nvlink", "pcie"]
    bytes_per_second: float
    """That one GPU sends at once, at best."""
    domain: int | None = None
    """GPUs that they join; null where it depends on the machine."""
    multicast: bool = False
    """Its switches add up (NVLink SHARP)."""
    mesh: bool = False
    """A GPU has a link of its own to each of the others; fewer ranks have fewer of them."""
    shared_bus: bool = False
    """GPUs share bridges of the host."""
    peer_to_peer: bool = True
    """GPUs read each other's memory; without it all passes through the host's."""
    gpus: tuple[str, ...] = ()
    source: str


class Network(Record):
    """What joins machines."""

    name: str
    description: str = ""
    kind: NetworkKind
    adapters: int = Field(ge=1)
    gigabit_per_second: float = Field(gt=0)
    """Of one adapter, in one direction."""
    per: Literal["gpu", "machine"] = "machine"
    """What has so many adapters."""
    latency_seconds: float = Field(default=0.0, ge=0)
    """Of one hop beyond NCCL's constants for any network, as the network's plugin or its user states it."""
    reduces_in_switches: bool = False
    """SHARP is on (NCCL_COLLNET_ENABLE=1)."""
    usual_for: tuple[str, ...] = ()
    source: str = "the user's own"

    @property
    def adapter_bytes_per_second(self) -> float:
        """Wire rate of one adapter, one direction."""
        return self.gigabit_per_second * GIGA / BITS

    def adapters_of(self, gpus_per_machine: int) -> int:
        """Adapters of a machine with so many GPUs."""
        return self.adapters * (gpus_per_machine if self.per == "gpu" else 1)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("forerun.network").joinpath("networks.toml").read_text(encoding="utf-8"))


@cache
def fabrics() -> tuple[Fabric, ...]:
    """Links inside machines."""
    table = _table()
    return tuple(
        Fabric(
            **{key: value for key, value in row.items() if key not in ("gb_per_second", "source")},
            bytes_per_second=row["gb_per_second"] * GIGA, source=table["source"][row["source"]],
        )
        for row in table["fabric"]
    )  # fmt: skip


@cache
def networks() -> tuple[Network, ...]:
    """Networks between machines."""
    table = _table()
    return tuple(
        Network(
            **{key: value for key, value in row.items() if key not in ("latency_micro", "source")},
            latency_seconds=row.get("latency_micro", 0) * MICRO, source=table["source"][row["source"]],
        )
        for row in table["network"]
    )  # fmt: skip


def fabric(name: str) -> Fabric:
    """The links of that name.

    Raises:
        UnknownNetwork: no row has this name.
    """
    rows = {row.name: row for row in fabrics()}
    if name.lower() not in rows:
        raise UnknownNetwork(f"No links named {name!r} in the catalogue. Nearest: {nearest(name, list(rows))}.")
    return rows[name.lower()]


def fabric_of(gpu: str) -> Fabric | None:
    """Links that GPUs of this catalogue name usually have in one machine; None where nobody knows."""
    listed = next((row for row in fabrics() if gpu in row.gpus), None)
    if listed is not None:
        return listed
    own = next((device.links for device in devices_named([gpu])), None)
    return None if own is None else fabric(own)


def network(choice: str | Mapping[str, Any]) -> Network:
    """The network of that name, or the user's own.

    A mapping has `kind`, `adapters`, `gigabit_per_second` and `per`, and where they are known `latency_seconds` and
    `reduces_in_switches`; with `like: NAME` it starts from that row.

    Raises:
        UnknownNetwork: no row has this name.
        InvalidSettings: the mapping is not one of a network.
    """
    if isinstance(choice, str):
        rows = {row.name: row for row in networks()}
        if choice.lower() not in rows:
            raise UnknownNetwork(
                f"No network named {choice!r} in the catalogue. Nearest: {nearest(choice, list(rows))}. `forerun "
                "networks` lists all; your own: {kind: infiniband, adapters: 8, gigabit_per_second: 400}."
            )
        return rows[choice.lower()]
    row = dict(choice)
    start: dict[str, Any] = network(row.pop("like")).model_dump() if "like" in row else {"name": "own"}
    try:
        return Network.model_validate(start | {"source": "the user's own"} | row)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidSettings(
            f"cluster.network: a name, or kind, adapters and gigabit_per_second are needed; found {dict(choice)}: "
            f"{problems}. Example: {{kind: infiniband, adapters: 8, gigabit_per_second: 400}}."
        ) from error


def usual_network(gpu: str) -> Network:
    """The network taken for machines with such GPUs where none is named."""
    return next((row for row in networks() if gpu in row.usual_for), None) or network(OTHERS_USE)
