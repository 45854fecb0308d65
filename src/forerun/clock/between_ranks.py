"""How long does a collective of a trace take? The call's name, bytes and group, priced by `forerun.network`.

A group's machines are those that the trace counted, or follow from its ranks where it could not know them. The other
ranks of the same machines are taken to run the same collective at the same time, in groups of their own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.hardware.catalogue import Device
from forerun.network.algorithms import Kind, Layout
from forerun.network.catalogue import fabric, fabric_of, network, usual_network
from forerun.network.collective import Cluster, CollectivePrice
from forerun.network.nccl_tests import read_nccl_tests
from forerun.trace import GROUP_SIZE, MACHINES, Call, Issuer, Trace

KINDS: tuple[tuple[str, Kind], ...] = (
    ("alltoall", "all_to_all"), ("all_to_all", "all_to_all"), ("allgather", "all_gather"), ("all_gather", "all_gather"),
    ("reduce_scatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("all_reduce", "all_reduce"),
    ("broadcast", "broadcast"), ("barrier", "barrier"), ("send", "send_receive"), ("recv", "send_receive"),
    ("scatter", "broadcast"), ("gather", "broadcast"), ("reduce", "broadcast"),
)  # fmt: skip
"""Parts of operator names, longer ones first; to or from one rank is priced as a broadcast, which moves no less."""
OF_LISTS = ("allgather_", "reduce_scatter_", "alltoall_")
"""Operators of c10d whose tensors are one rank's part each; the message is that of all ranks."""
GPUS_PER_MACHINE = 8
"""Where nobody says: DGX, HGX and the clouds' largest machines have eight."""
STREAMING_BLOCKS = 24
"""Multiprocessors that NCCL's kernels hold while they run: one a channel, and 24 channels on 8 A100 and on 2 H100 with
NVLink bridges (logs of NVIDIA/nccl-tests issues 100 and 194, read)."""


@dataclass(frozen=True)
class Job:
    """The ranks of a job and the machines they are in."""

    cluster: Cluster
    world_size: int
    network_is_assumed: bool = False
    """Nobody named the network."""
    prices: dict[tuple[Kind, Layout], CollectivePrice] = field(default_factory=dict, compare=False)
    """The dearest of each kind and layout that was priced, for what a forecast says of it."""

    def price(self, call: Call) -> CollectivePrice:
        """Time of one collective."""
        kind, group = kind_of(call), dict(call.keywords)
        ranks, machines = group.get(GROUP_SIZE, self.world_size), group.get(MACHINES, 1)
        machines = max(machines, math.ceil(ranks / self.cluster.gpus_per_machine))
        if call.issuer == Issuer.EXPERTS and kind == "all_to_all" and machines == 1:
            kind = "all_gather"  # a kernel of its own that fills the links, as NCCL's messages by pairs do not
        if kind == "send_receive":  # between neighbours, who may be in two machines
            ranks, machines = min(ranks, 2), min(machines, 2)
        at_once = min(self.world_size, self.cluster.gpus_per_machine)
        if kind == "send_receive" and machines == 1:  # a pair on links of its own
            at_once = ranks
        layout = self.cluster.layout(ranks, machines, at_once)
        price = self.cluster.price(kind, message_bytes(call, ranks), layout)
        dearest = self.prices.get((kind, layout))
        if ranks > 1 and (dearest is None or price.seconds > dearest.seconds):
            self.prices[kind, layout] = price
        return price


def between_cards(device: Device, size_bytes: int) -> float | None:
    """Seconds of a copy between two cards of one machine, as a message of one rank to another; None without links."""
    links = fabric_of(device.name)
    if links is None:
        return None
    cluster = Cluster(links)
    return cluster.price("send_receive", size_bytes, cluster.layout(2, 1, 2)).seconds


def kind_of(call: Call) -> Kind:
    """Which collective an operator is; all-reduce where its name says nothing."""
    name = call.name.split(".")[1]
    kinds: list[Kind] = [kind for part, kind in KINDS if part in name]
    return kinds[0] if kinds else "all_reduce"


def message_bytes(call: Call, ranks: int) -> int:
    """Bytes of the whole message, as `forerun.network` counts them."""
    largest = max((spec.bytes for spec in (*call.inputs, *call.outputs)), default=0)
    name = call.name.split(".")[1]
    if name in OF_LISTS:
        return largest * ranks
    if "coalesced" in name:  # tensors side by side: parts and wholes of gathers and scatters, else wholes alone
        listed = sum(spec.bytes for spec in call.inputs)
        return listed if "reduce_coalesced" in name else max(largest, listed * ranks // (ranks + 1))
    return largest


def job_of(
    device: Device,
    world_size: int,
    gpus_per_machine: int = GPUS_PER_MACHINE,
    choice: str | Mapping[str, Any] | None = None,
) -> Job | None:
    """A job on machines with such GPUs; None for one rank, or a device whose links nobody knows.

    `choice` is a network's name, a file of nccl-tests output, or a mapping as `forerun.network.catalogue.network` takes
    it, with `nccl_tests` (a file) and `inside` (a name of links) besides.

    Raises:
        UnknownNetwork: no such network or links.
        InvalidSettings: the mapping is not one of a network.
        BadData: the file is no nccl-tests output.
    """
    links = fabric_of(device.name)
    row = dict(choice) if isinstance(choice, Mapping) else {}
    table = row.pop("nccl_tests", None)
    if "inside" in row:
        links = fabric(row.pop("inside"))
    if isinstance(choice, str) and Path(choice).is_file():
        table, choice = choice, None
    measured = None if table is None else read_nccl_tests(Path(table))
    named = row or (choice if isinstance(choice, str) else None)
    between = network(named) if named else usual_network(device.name)
    if world_size == 1 or links is None:
        return None
    is_assumed = not named and measured is None and world_size > gpus_per_machine
    return Job(Cluster(links, gpus_per_machine, between, measured), world_size, is_assumed)


def job_of_trace(device: Device, trace: Trace) -> Job | None:
    """The job that a traced rank belongs to, on machines with such GPUs; None as of `job_of`."""
    return job_of(device, trace.world_size, trace.gpus_per_machine, trace.network)
