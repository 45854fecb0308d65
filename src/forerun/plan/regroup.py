"""A trace over the groups of another layout: the same operators, other ranks and machines in each exchange.

Gathers and scatters of shards carry the whole weights whatever the number of shards; sums over copies carry one shard.
Groups are told apart by their ranks: those of split layers are neighbours, those of shards lie `tensor` apart, those of
copies `tensor` x `shard`, those of shards of dealt experts `expert`.
"""

import math
from dataclasses import replace

from forerun.plan.layouts import ClusterLayout
from forerun.trace import BETWEEN_RANKS, GROUP_SIZE, MACHINES, RANKS, Call, TensorSpec, Trace

PIECES = ("_c10d_functional.all_gather_into_tensor", "_c10d_functional.all_to_all_single")
"""Exchanges of keys, values and their gradients, and of rows for experts; FSDP's have names of their own."""


def regrouped(trace: Trace, old: ClusterLayout, new: ClusterLayout) -> Trace:
    """`trace` of the layout `old` as one of `new`, which has the same operators; storages stay those of `old`."""
    if old == new:
        return trace
    calls = [_regrouped(call, old, new, trace.gpus_per_machine) for call in trace.calls]
    return replace(trace, calls=calls, world_size=new.gpus)


def _regrouped(call: Call, old: ClusterLayout, new: ClusterLayout, gpus_per_machine: int) -> Call:
    keywords = dict(call.keywords)
    if old.context * old.expert > 1 and call.name.startswith(PIECES):
        return call  # of ranks that share sequences or experts, in one machine under every layout
    if not call.name.startswith(BETWEEN_RANKS) or GROUP_SIZE not in keywords:
        return call
    ranks: tuple[int, ...] = tuple(keywords.get(RANKS, range(keywords[GROUP_SIZE])))
    apart, share = (ranks[1] - ranks[0] if len(ranks) > 1 else 1), 1.0
    if len(ranks) == old.gpus:
        size, apart = new.gpus, 1
    elif apart == old.tensor and len(ranks) == old.shard:
        size, apart = new.shard, new.tensor
    elif apart == old.tensor * old.shard and len(ranks) == old.replicate:
        size, apart, share = new.replicate, new.tensor * new.shard, old.shard / new.shard
    elif apart == old.expert > 1 and len(ranks) == old.shard // old.expert:
        size, apart = new.shard // new.expert, new.expert
    else:
        return call
    machines = min(size, math.ceil(size * apart / gpus_per_machine))
    group = {GROUP_SIZE: size, MACHINES: machines, RANKS: tuple(range(0, size * apart, apart))}
    specs = {"inputs": _scaled(call.inputs, share), "outputs": _scaled(call.outputs, share)}
    return replace(call, keywords=tuple((keywords | group).items()), **specs)


def _scaled(specs: tuple[TensorSpec, ...], share: float) -> tuple[TensorSpec, ...]:
    return specs if share == 1 else tuple(replace(spec, bytes=round(spec.bytes * share)) for spec in specs)
