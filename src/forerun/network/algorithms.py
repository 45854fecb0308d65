"""Which algorithm and protocol of NCCL carries a collective, and how long it takes? All candidates, seconds each.

Structure of each candidate: start + steps x latency of a step + bytes on the wire / bandwidth of the narrowest link.
Steps and shares follow NCCL's own tuning model, which also takes the least (`ncclTopoTuneModel`,
`ncclTopoGetAlgoTime`, NVIDIA/nccl 2.20.3, src/graph/tuning.cc at b6475625; read). Its constants are replaced by
fitted ones where timings are public.

Not covered: PAT (one GPU a machine, 2.23 and later), user buffer registration, symmetric memory, copy engines.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from forerun.network.links import LinkCoefficients, NetworkCoefficients
from forerun.units import MICRO

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_receive", "barrier"]
BARRIER_BYTES = 4
"""PyTorch's barrier reduces one float (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `barrier`, 2.13)."""
RING_HOP_MICRO = {"ll": 2.7, "ll128": 4.0, "simple": 14.0}
TREE_HOP_MICRO = {"ll": 5.0, "ll128": 8.5, "simple": 28.0}
TREE_CHUNK_MICRO = 28.0
"""Of a hop of a tree with Simple inside a machine: NCCL counts a chunk of 256 KiB (`hwLat`, the same table)."""
NVLS_TREE_HOP_MICRO, COLLNET_HOP_MICRO = 14.0, 31.0
"""Microseconds of a hop over any network: NCCL's own table (`hwLat`, tuning.cc, 2.20.3)."""
TREE_OF_RING = 0.92
"""Share of a ring's bandwidth inside a machine that a tree reaches: NCCL's own constant (tuning.cc)."""


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a group are, and who shares their links."""

    ranks: int
    machines: int = 1
    groups: int = 1
    """Groups that run the same collective at once from the same machines, this one among them."""

    @property
    def ranks_per_machine(self) -> int:
        """The most that any machine has."""
        return math.ceil(self.ranks / self.machines)


@dataclass(frozen=True)
class Crossing:
    """Links from one machine to the others, as a group has them."""

    rates: NetworkCoefficients
    machine_bytes_per_second: float
    """Wire rate of the adapters that the group can use, one direction."""
    adapter_bytes_per_second: float
    """Of one adapter, which a single pair of ranks uses."""
    latency_seconds: float = 0.0
    """Of one hop, beyond what NCCL takes for any network."""
    reduces: bool = False
    """Switches add up (SHARP, NCCL's CollNet)."""

    def hop_seconds(self, micro: float, protocol: str) -> float:
        """Time of one hop; with Simple the receiver also flushes, which costs the latency again (tuning.cc, 2.20.3)."""
        return micro * MICRO + self.latency_seconds * (2 if protocol == "simple" else 1)


@dataclass(frozen=True)
class CollectiveWay:
    """One way to carry a collective."""

    algorithm: str
    protocol: str
    seconds: float


def candidates(
    kind: Kind, message_bytes: float, layout: Layout, inside: LinkCoefficients, between: Crossing | None
) -> list[CollectiveWay]:
    """Every algorithm and protocol that NCCL may take; `between` is None for a group in one machine."""
    if kind == "barrier":
        kind, message_bytes = "all_reduce", BARRIER_BYTES
    if kind in ("all_to_all", "send_receive"):
        return list(_pairs(kind, message_bytes, layout, inside, between))
    ways = list(_rings(kind, message_bytes, layout, inside, between))
    if kind == "all_reduce" and between is not None:
        ways += _trees(message_bytes, layout, inside, between)
    ways += _switches(kind, message_bytes, layout, inside, between)
    return ways


def _crowd(layout: Layout, inside: LinkCoefficients) -> float:
    """Share of the bandwidth that is left on a bus with so many ranks."""
    on_bus = layout.ranks_per_machine * layout.groups
    return (2 / max(2, on_bus)) ** inside.crowding


def _rings(
    kind: Kind, message_bytes: float, layout: Layout, inside: LinkCoefficients, between: Crossing | None
) -> Iterator[CollectiveWay]:
    ranks, machines = layout.ranks, layout.machines
    steps = 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1
    crossings = 0 if between is None else 2 * machines if kind == "all_reduce" else machines - 1
    # Each step carries one part of `ranks`; a broadcast passes the whole message on, in a pipeline.
    sent = message_bytes if kind == "broadcast" else message_bytes * steps / ranks
    copied = 0.0 if kind == "broadcast" else message_bytes * inside.local_steps / ranks
    for name, protocol in inside.protocols.items():
        seconds = protocol.start_seconds + max(0, steps - crossings) * protocol.hop_seconds
        carry = (sent + copied) / (protocol.bytes_per_second * _crowd(layout, inside))
        if between is not None:
            seconds += between.rates.start_seconds + crossings * between.hop_seconds(RING_HOP_MICRO[name], name)
            share = min(1.0, protocol.bytes_per_second / inside.protocols["simple"].bytes_per_second)
            carry = max(carry, sent / (between.machine_bytes_per_second * between.rates.ring_fraction * share))
        yield CollectiveWay("ring", name, seconds + carry)


def _trees(
    message_bytes: float, layout: Layout, inside: LinkCoefficients, between: Crossing
) -> Iterator[CollectiveWay]:
    depth, rates = math.log2(layout.machines), between.rates
    # Up and down again: a machine sends each part twice. tuning.cc takes half for all trees, and for one through NVLink
    # switches (`NVLS_TREE`) only beyond two machines; two of A100 with 100 GB/s reach 91 (nccl-tests issue 100).
    outside = between.machine_bytes_per_second * rates.tree_fraction
    times = 1 if layout.machines <= 2 else 2
    for name, protocol in inside.protocols.items():
        share = min(1.0, protocol.bytes_per_second / inside.protocols["simple"].bytes_per_second)
        hop = max(protocol.hop_seconds, TREE_CHUNK_MICRO * MICRO) if name == "simple" else protocol.hop_seconds
        chain = 2 * (layout.ranks_per_machine - 1) * hop
        seconds = (
            protocol.start_seconds
            + rates.start_seconds
            + chain
            + 2 * depth * between.hop_seconds(TREE_HOP_MICRO[name], name)
        )
        bandwidth = min(protocol.bytes_per_second * TREE_OF_RING * _crowd(layout, inside), outside * share) / 2
        yield CollectiveWay("tree", name, seconds + message_bytes / bandwidth)
    switch = inside.multicast
    if switch is not None and layout.ranks_per_machine >= switch.least_ranks:
        bandwidth = min(switch.bytes_per_second, outside) / times
        filling = min(message_bytes, rates.chunk_bytes * layout.ranks_per_machine) / bandwidth
        hops = 2 * depth * (between.hop_seconds(NVLS_TREE_HOP_MICRO, "simple") + filling)
        seconds = switch.start_seconds + rates.start_seconds + hops + message_bytes / bandwidth
        yield CollectiveWay("nvls-tree", "simple", seconds)


def _switches(
    kind: Kind, message_bytes: float, layout: Layout, inside: LinkCoefficients, between: Crossing | None
) -> Iterator[CollectiveWay]:
    """Sums in switches: NVLink SHARP in one machine, CollNet with it where the network's switches add up too."""
    switch = inside.multicast
    if switch is None or kind != "all_reduce" or layout.ranks_per_machine < switch.least_ranks:
        return
    if between is None:
        yield CollectiveWay("nvls", "simple", switch.start_seconds + message_bytes / switch.bytes_per_second)
    elif between.reduces:
        rates = between.rates
        seconds = switch.start_seconds + rates.start_seconds + between.hop_seconds(COLLNET_HOP_MICRO, "simple")
        outside = between.machine_bytes_per_second * rates.tree_fraction
        yield CollectiveWay("collnet", "simple", seconds + message_bytes / min(switch.bytes_per_second, outside))


def _pairs(
    kind: Kind, message_bytes: float, layout: Layout, inside: LinkCoefficients, between: Crossing | None
) -> Iterator[CollectiveWay]:
    """Sends and receives: one, or in all-to-all one to each other rank."""
    near = layout.ranks_per_machine
    peers, part = (1, message_bytes) if kind == "send_receive" else (layout.ranks - 1, message_bytes / layout.ranks)
    for name, rates in inside.peers.items():
        seconds = rates.start_seconds + (peers - 1) * rates.peer_seconds
        bandwidth = rates.bytes_per_second * _crowd(layout, inside)
        if between is None:
            yield CollectiveWay("pairs", name, seconds + peers * part / bandwidth)
            continue
        share = min(1.0, rates.bytes_per_second / inside.peers["simple"].bytes_per_second)
        seconds += between.rates.start_seconds + between.hop_seconds(RING_HOP_MICRO[name], name)
        wire = between.rates.ring_fraction * share
        if kind == "send_receive":
            carry = part / min(bandwidth, between.adapter_bytes_per_second * wire)
        else:
            leaving = near * (layout.ranks - near) * part / (between.machine_bytes_per_second * wire)
            carry = max((near - 1) * part / bandwidth, leaving)
        yield CollectiveWay("pairs", name, seconds + carry)
