"""What one rank of a program exchanges with the others in a step, and how many ranks have rows of their own."""

import math
from collections import Counter

from forerun.memory.explanation import RankExchange
from forerun.trace import AWAITED, BETWEEN_RANKS, GROUP_SIZE, MACHINES, OP, Call, Phase, Trace

LITTLE = 0.1
"""Share of the gradients' bytes below which a reduction in the forward pass is a statistic."""


def count_collectives(step: Trace) -> list[RankExchange]:
    """Collectives of a step, those that move most first."""
    counts: Counter[tuple[str, str, int, int, int]] = Counter()
    for phase, call in collectives_of(step):
        group = dict(call.keywords)
        size = max((spec.bytes for spec in (*call.inputs, *call.outputs)), default=0)
        name = call.name.split(".")[1]
        counts[name, phase.value, group.get(GROUP_SIZE, 1), group.get(MACHINES, 1), size] += 1
    rows = sorted(counts.items(), key=lambda row: -row[0][-1] * row[1])
    return [
        RankExchange(name=name, phase=phase, ranks=ranks, machines=machines, bytes=size, count=count)
        for (name, phase, ranks, machines, size), count in rows
    ]


def data_parallel_ranks(step: Trace) -> int:
    """Ranks that train on rows of their own: those that the gradients of a step are reduced over.

    Groups that reduce as much in the forward pass share their rows (tensor parallelism); a mean of losses is little.
    """
    sizes: dict[Phase, Counter[tuple[str, int]]] = {phase: Counter() for phase in Phase}
    for phase, call in collectives_of(step):
        if not call.name.startswith(AWAITED) and "reduce" in call.name:
            ranks = dict(call.keywords).get(GROUP_SIZE, 1)
            sizes[phase][call.name, ranks] += max((spec.bytes for spec in (*call.inputs, *call.outputs)), default=0)
    forward, backward = sizes[Phase.FORWARD], sizes[Phase.BACKWARD]
    return math.prod(key[1] for key in backward if forward[key] <= LITTLE * backward[key])


def collectives_of(step: Trace) -> list[tuple[Phase, Call]]:
    """Every collective of a step in order, with its phase."""
    ops = [step.ops[index] for kind, index in step.events if kind == OP]
    pairs = [(op.phase, step.calls[op.call]) for op in ops]
    return [(phase, call) for phase, call in pairs if call.name.startswith(BETWEEN_RANKS) and not call.is_view]
