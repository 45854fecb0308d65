"""Which ranks of a program differ, and what each kind of rank needs.

Ranks that exchange messages (`send`, `recv_`) are stages of a pipeline and may do different things; ranks that only
take part in collectives do the same. So one rank of each stage is run, and its kind are all ranks that it is joined to
by groups which join no two stages. Stages that issued the same operators and need the same memory are one kind.
Not covered: differences among the ranks of one stage, such as an evaluation that only rank 0 does.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from forerun.clock.job_step import RankStep, RankTime
from forerun.records import Forecast, RankKind, Record
from forerun.trace import OP, PEER, Trace

MOST_STAGES = 128
"""Stages of a pipeline that are run; more are refused, as each takes a process."""


class StepContent(Record):
    """What one rank does in a step, for telling kinds apart."""

    rank: int
    peers: list[int]
    """Ranks that it exchanges messages with."""
    signature: str
    """Hash of its operators; that of equal ranks is equal."""


def peers_of_trace(trace: Trace) -> list[int]:
    """Ranks that this one exchanges messages with."""
    return sorted({dict(call.keywords)[PEER] for call in trace.calls if PEER in dict(call.keywords)})


def content_of(rank: int, step: Trace, whole: Trace) -> StepContent:
    """The content of the step of `rank`; its peers are those of the whole trace."""
    digest = hashlib.sha256()
    parts = {
        index: repr((c.name, c.inputs, c.outputs, c.flops, c.bytes_read, c.bytes_written, c.times)).encode()
        for index, c in enumerate(step.calls)
    }
    for kind, index in step.events:
        if kind == OP:
            digest.update(parts[step.ops[index].call])
    return StepContent(rank=rank, peers=peers_of_trace(whole), signature=digest.hexdigest()[:16])


def ranks_by_stage(stages: Sequence[int], groups: Iterable[tuple[int, ...]], world_size: int) -> dict[int, list[int]]:
    """For each rank of `stages`, which are in one pipeline, all ranks that do the same.

    `groups` are the process groups of all ranks, in the order in which the program makes them.

    Groups come in families, one after the other: of equal size, each rank in one at most. A family in which one group
    holds two of `stages` joins stages and is left out; the others join ranks that do the same.
    """
    if len(stages) == 1:
        return {stages[0]: list(range(world_size))}
    leader = list(range(world_size))

    def find(rank: int) -> int:
        while leader[rank] != rank:
            leader[rank] = leader[leader[rank]]
            rank = leader[rank]
        return rank

    for family in _families(groups):
        if not any(len(set(group) & set(stages)) > 1 for group in family):
            for group in family:
                for rank in group[1:]:
                    leader[find(rank)] = find(group[0])
    members: dict[int, list[int]] = {}
    for rank in range(world_size):
        members.setdefault(find(rank), []).append(rank)
    return {stage: members[find(stage)] for stage in stages}


def _families(groups: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    families: list[list[tuple[int, ...]]] = []
    members: set[int] = set()
    for group in groups:
        if not families or len(group) != len(families[-1][0]) or members & set(group):
            families.append([])
            members = set()
        families[-1].append(group)
        members |= set(group)
    return families


def as_text(ranks: Sequence[int]) -> str:
    """Sorted ranks as ranges, such as "0-3,8"."""
    runs = [list(run) for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def kinds_of(
    forecasts: Mapping[int, Forecast],
    contents: Sequence[StepContent],
    members: Mapping[int, Sequence[int]],
    steps: Mapping[int, RankStep],
    times: Mapping[int, RankTime],
) -> list[RankKind]:
    """Kinds of rank from the forecast and content of one rank of each stage, in the order of stages.

    `steps` says of each what it does on its own, `times` in a step of the job; empty where that is not known.
    """
    alike: dict[tuple[str, int, int], list[int]] = {}
    for content in contents:
        memory = forecasts[content.rank].memory
        key = content.signature, memory.peak_allocated_bytes, memory.peak_reserved_bytes
        alike.setdefault(key, []).append(content.rank)
    places = {content.rank: place for place, content in enumerate(contents)}
    rows = []
    for ranks in alike.values():
        first, every = ranks[0], sorted(rank for stage in ranks for rank in members[stage])
        forecast = forecasts[first]
        phases, time = forecast.step.phases, times.get(first)
        rows.append(
            RankKind(
                ranks=as_text(every), count=len(every), stages=[places[rank] for rank in ranks], rank=first,
                fits=forecast.fits, peak_allocated_bytes=forecast.memory.peak_allocated_bytes,
                peak_reserved_bytes=forecast.memory.peak_reserved_bytes,
                device_bytes=int(forecast.memory.device_bytes.expected),
                compute_seconds=phases.forward_seconds + phases.backward_seconds + phases.optimizer_seconds,
                communication_seconds=steps[first].communication_seconds,
                exposed_communication_seconds=None if time is None else time.busy.get("communication", 0.0),
                bubble_seconds=None if time is None else time.bubble_seconds,
            )
        )  # fmt: skip
    return rows
