"""How fast is NCCL over a kind of links? Coefficients of `coefficients.json`, which `benchmarks/collectives.py` writes.

Links that were measured have their own. Others have those of their family as shares of the link's stated rate, with
the spread that was seen when each measured kind of links was left out in turn.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from forerun.network.catalogue import Fabric, NetworkKind
from forerun.network.links import FittedLinks, FittedNetwork, LinkCoefficients


@cache
def _table() -> dict[str, Any]:
    return json.loads(files("forerun.network").joinpath("coefficients.json").read_text(encoding="utf-8"))


def link_rates(fabric: Fabric) -> tuple[FittedLinks, bool]:
    """Coefficients of links inside a machine, and whether they were fitted to measurements of such links."""
    table = _table()
    if fabric.name in table["fabrics"]:
        return FittedLinks(**table["fabrics"][fabric.name]), True
    shares = FittedLinks(**table["families"][fabric.family])
    scaled = scale_to_link(shares.coefficients, fabric.bytes_per_second)
    if not fabric.multicast:
        scaled = scaled.model_copy(update={"multicast": None})
    return shares.model_copy(update={"coefficients": scaled}), False


def scale_to_link(shares: LinkCoefficients, bytes_per_second: float) -> LinkCoefficients:
    """Coefficients whose bandwidths are shares of a link's rate, for a link of so many bytes per second."""

    def scaled(rates: Any) -> Any:
        return rates.model_copy(update={"bytes_per_second": rates.bytes_per_second * bytes_per_second})

    return shares.model_copy(
        update={
            "protocols": {name: scaled(rates) for name, rates in shares.protocols.items()},
            "peers": {name: scaled(rates) for name, rates in shares.peers.items()},
            "multicast": None if shares.multicast is None else scaled(shares.multicast),
        }
    )


def network_rates(kind: NetworkKind) -> FittedNetwork:
    """Coefficients of a kind of network between machines."""
    return FittedNetwork(**_table()["networks"][kind])
