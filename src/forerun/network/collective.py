"""How long does a collective take? Its kind, bytes, group and cluster in; seconds, NCCL's way and how sure that is out.

The least of all candidates (`algorithms.py`), as NCCL's tuner takes it. Where the user has measured their cluster
with nccl-tests, that table answers, and the candidates only carry it over to other kinds, sizes of groups and
layouts.

`message_bytes` is the whole message as nccl-tests counts it: what all-gather gives, what reduce-scatter gets, what
one rank sends to all in all-to-all. Not covered: other jobs' traffic, oversubscribed switches, routing.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from forerun.network.algorithms import CollectiveWay, Crossing, Kind, Layout, candidates
from forerun.network.catalogue import Fabric, Network
from forerun.network.links import FittedLinks, LinkCoefficients, NetworkCoefficients
from forerun.network.nccl_tests import MeasuredTable
from forerun.network.rates import link_rates, network_rates, scale_to_link
from forerun.records import Record

Basis = Literal["measured", "derived", "table", "carried"]
DERIVED_SPREAD = 1.5
"""Times wider: no public curve of any but all-reduce between machines shows how far a derived one is off. Stated."""


class CollectivePrice(Record):
    """Time of one collective and where it comes from."""

    seconds: float
    algorithm: str
    """Such as `ring`, `tree`, `nvls`, `nvls-tree`, `pairs`; `table` where the user measured it."""
    protocol: str
    basis: Basis
    """`measured`: fitted to timings of this kind on such links. `derived`: from the algorithm, or from other links.
    `table`: the user's own. `carried`: the user's own, from another kind or layout."""
    spread_fraction: float
    """Nine of ten are within so much of it."""


def crossing_of(network: Network, gpus_per_machine: int, layout: Layout, rates: NetworkCoefficients) -> Crossing:
    """Links between machines as one group has them: its share where other groups run beside it."""
    adapters, one = network.adapters_of(gpus_per_machine), network.adapter_bytes_per_second
    # Each GPU uses the adapters nearest to it; a group that has one GPU of a machine has no more than those.
    near = min(adapters, max(1.0, layout.ranks_per_machine * adapters / gpus_per_machine))
    rate = one * min(near, adapters / layout.groups)
    latency = network.latency_seconds * rates.latency_fraction
    return Crossing(rates, rate, min(one, rate), latency, network.reduces_in_switches)


@dataclass(frozen=True)
class Cluster:
    """Machines with links inside and a network between them."""

    fabric: Fabric
    gpus_per_machine: int = 8
    network: Network | None = None
    """None where all ranks are in one machine."""
    table: MeasuredTable | None = None

    @cached_property
    def _links(self) -> tuple[FittedLinks, bool]:
        return link_rates(self.fabric)

    def crossing(self, layout: Layout) -> Crossing | None:
        """Links from a machine to others as a group has them; None in one machine."""
        if layout.machines == 1 or self.network is None:
            return None
        rates = network_rates(self.network.kind).coefficients
        return crossing_of(self.network, self.gpus_per_machine, layout, rates)

    def ways(self, kind: Kind, message_bytes: float, layout: Layout) -> list[CollectiveWay]:
        """Every way in which NCCL may carry it, with its seconds."""
        return candidates(kind, message_bytes, layout, self._links_of(layout), self.crossing(layout))

    def _links_of(self, layout: Layout) -> LinkCoefficients:
        """Links inside a machine as the ranks of a group there have them: of a mesh, those among themselves."""
        links = self._links[0].coefficients
        if not self.fabric.mesh or self.fabric.domain is None:
            return links
        among = max(1, layout.ranks_per_machine - 1)
        return scale_to_link(links, min(1.0, among / (self.fabric.domain - 1)))

    def price(self, kind: Kind, message_bytes: float, layout: Layout) -> CollectivePrice:
        """The fastest way, and how sure it is.

        Raises:
            ValueError: the group is in several machines and the cluster has no network.
        """
        if layout.ranks < 2 or message_bytes <= 0 and kind != "barrier":
            return CollectivePrice(seconds=0.0, algorithm="none", protocol="none", basis="measured", spread_fraction=0)
        if layout.machines > 1 and self.network is None:
            raise ValueError(f"a group in {layout.machines} machines needs a network between them")
        best = min(self.ways(kind, message_bytes, layout), key=lambda way: way.seconds)
        basis, spread = self._basis(kind, layout)
        price = CollectivePrice(
            seconds=best.seconds, algorithm=best.algorithm, protocol=best.protocol, basis=basis, spread_fraction=spread
        )
        return price if self.table is None else self._by_table(price, kind, message_bytes, layout)

    def _basis(self, kind: Kind, layout: Layout) -> tuple[Basis, float]:
        links, is_measured = self._links
        if layout.machines == 1 or self.network is None:
            like_fitted = is_measured and kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
            return "measured" if like_fitted else "derived", links.spread_fraction
        rates = network_rates(self.network.kind)
        is_fitted = rates.measured and is_measured and kind == "all_reduce"
        spread = max(links.spread_fraction, rates.spread_fraction)
        return ("measured", spread) if is_fitted else ("derived", spread * DERIVED_SPREAD)

    def _by_table(self, price: CollectivePrice, kind: Kind, message_bytes: float, layout: Layout) -> CollectivePrice:
        """The user's own measurement, carried over by the ratio of the model's times where it is of something else."""
        table = self.table
        assert table is not None
        curve = table.nearest(kind, layout.ranks, layout.machines)
        if curve is None:
            return price
        is_own = (curve.kind, curve.ranks, curve.machines) == (kind, layout.ranks, layout.machines)
        if is_own and layout.groups == 1:
            seconds = curve.seconds(message_bytes)
            update = {"seconds": seconds, "algorithm": "table", "basis": "table", "spread_fraction": 0.05}
            return price.model_copy(update=update)
        there = Layout(curve.ranks, curve.machines)
        if there.machines > 1 and self.network is None:
            return price
        modelled = min(way.seconds for way in self.ways(curve.kind, message_bytes, there))
        ratio = curve.seconds(message_bytes) / modelled
        return price.model_copy(update={"seconds": price.seconds * ratio, "basis": "carried"})

    def layout(self, ranks: int, machines: int, ranks_at_once: int) -> Layout:
        """Where a group is; `ranks_at_once` of its job are in each machine and run the same collective in groups."""
        here = Layout(ranks, machines)
        return replace(here, groups=max(1, math.floor(ranks_at_once / here.ranks_per_machine)))
