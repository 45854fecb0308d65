"""What one rank of a program exchanges with the others in a step, and how many ranks have rows of their own."""

import math
from collections import Counter

from forerun.memory.explanation import RankExchange
from forerun.trace import AWAITED, BETWEEN_RANKS, GROUP_SIZE, MACHINES, OP, Call, Op, Phase, Trace

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
    Where no backward pass reduces anything, what follows its arithmetic does (DeepSpeed's engine, loops over
    `p.grad`), but for norms and checks, which are little beside it.
    """
    sizes: dict[Phase, Counter[tuple[str, int]]] = {phase: Counter() for phase in Phase}
    after, computes = Counter[tuple[str, int]](), Phase.PREPARE
    for op in _ops_of(step):
        call = step.calls[op.call]
        if _is_exchange(call) and not call.name.startswith(AWAITED) and "reduce" in call.name:
            key = call.name, dict(call.keywords).get(GROUP_SIZE, 1)
            is_behind = computes is Phase.BACKWARD and op.phase is not Phase.BACKWARD
            table = after if is_behind else sizes[op.phase]
            table[key] += max((spec.bytes for spec in (*call.inputs, *call.outputs)), default=0)
        computes = op.phase if call.flops else computes
    forward, backward = sizes[Phase.FORWARD], sizes[Phase.BACKWARD]
    if not backward:
        backward = Counter({key: size for key, size in after.items() if size > LITTLE * max(after.values())})
    return math.prod(key[1] for key in backward if forward[key] <= LITTLE * backward[key])


def _ops_of(step: Trace) -> list[Op]:
    return [step.ops[index] for kind, index in step.events if kind == OP]


def _is_exchange(call: Call) -> bool:
    return call.name.startswith(BETWEEN_RANKS) and not call.is_view


def collectives_of(step: Trace) -> list[tuple[Phase, Call]]:
    """Every collective of a step in order, with its phase."""
    pairs = [(op.phase, step.calls[op.call]) for op in _ops_of(step)]
    return [(phase, call) for phase, call in pairs if _is_exchange(call)]
