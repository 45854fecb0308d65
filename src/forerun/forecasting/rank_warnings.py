"""What a forecast of several ranks says of its communication: the network that was taken, how sure the times are."""

from forerun.clock.between_ranks import kind_of
from forerun.clock.costs import Costs
from forerun.clock.priors import PriorCosts
from forerun.forecasting.collectives import collectives_of
from forerun.network.catalogue import fabric_of
from forerun.trace import Trace

LARGEST_MACHINE = 8
TOLD = {
    "derived": "derived from NCCL's algorithms, as no timings of it on such links are public",
    "carried": "carried over from the closest table of nccl-tests",
    "table": "from your table of nccl-tests",
}


def rank_warnings(step: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast of `step`; none for one rank."""
    if not isinstance(costs, PriorCosts):
        return []
    warnings = []
    kinds_of_step = {kind_of(call) for _, call in collectives_of(step)}
    prices = {key: price for key, price in costs.collective_prices.items() if key[0] in kinds_of_step}
    network = costs.network
    is_spread = any(layout.machines > 1 for _, layout in prices)
    links = fabric_of(costs.device.name)
    if is_spread and links is not None and (links.domain or 0) > max(LARGEST_MACHINE, costs.gpus_per_machine):
        warnings.append(
            f"NVLink joins up to {links.domain} of {costs.device.name}, in a rack of machines; here it joins "
            f"{costs.gpus_per_machine}. Set cluster.gpus_per_node to {links.domain} for such a rack."
        )
    if network is not None and is_spread:
        wire = network.adapters_of(costs.gpus_per_machine) * network.gigabit_per_second
        warnings.append(
            f"No network is named: {network.name} is taken between machines, {wire:g} Gb/s each. Name yours: "
            "cluster.network in settings, --network of exec; `forerun networks` lists them."
        )
    groups: dict[tuple[str, bool], tuple[set[str], float]] = {}
    for (kind, layout), price in prices.items():
        if price.basis in TOLD:
            kinds, widest = groups.setdefault((price.basis, layout.machines > 1), (set(), 0.0))
            kinds.add(kind.replace("_", "-"))
            groups[price.basis, layout.machines > 1] = kinds, max(widest, price.spread_fraction)
    for (basis, across), (kinds, spread) in sorted(groups.items()):
        where = "between machines" if across else "inside a machine"
        warnings.append(f"Time of {', '.join(sorted(kinds))} {where} is {TOLD[basis]}; take it as within {spread:.0%}.")
    return warnings
