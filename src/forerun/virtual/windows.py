"""One step of several that a trace holds, as a trace of its own: no torch."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from forerun.trace import ALLOCATE, FREE, OP, RANKS, Call, Trace


def window(trace: Trace, prepared: int, start: int, end: int) -> Trace:
    """The step `events[start:end]`, after what `events[:prepared]` prepared and what is left of the steps between."""
    between = trace.events[prepared:start]
    ends = {index for kind, index in between if kind == FREE}
    fresh = {index for kind, index in between if kind == ALLOCATE}
    rest = [
        prepared + place
        for place, (kind, index) in enumerate(between)
        if (kind == ALLOCATE and index not in ends) or (kind == FREE and index not in fresh)
    ]
    return _of_places(trace, [*range(prepared), *rest], range(start, end))


def _of_places(trace: Trace, before: Sequence[int], step: Sequence[int]) -> Trace:
    """The events at some places, with the operators, calls and storages that they need and no others."""
    places = [*before, *step]
    new_place = {place: number for number, place in enumerate(places)}
    ops = _numbered(index for kind, index in (trace.events[place] for place in places) if kind == OP)
    storages = _numbered(index for kind, index in (trace.events[place] for place in places) if kind != OP)
    calls = _numbered(trace.ops[index].call for index in ops)
    freed = {index for kind, index in (trace.events[place] for place in places) if kind == FREE}
    events = [
        (kind, ops[index] if kind == OP else storages[index])
        for kind, index in (trace.events[place] for place in places)
    ]
    return replace(
        trace,
        calls=[trace.calls[index] for index in calls],
        ops=[replace(trace.ops[index], call=calls[trace.ops[index].call]) for index in ops],
        storages=[
            replace(each, freed_in=each.freed_in if index in freed else None)
            for index, each in ((index, trace.storages[index]) for index in storages)
        ],
        events=events,
        warm_from=len(before),
        lines={ops[index]: line for index, line in trace.lines.items() if index in ops},
        waits=[(new_place[place], ops[op]) for place, op in trace.waits if place in new_place and op in ops],
        failures=[],
    )


def _numbered(indices: Iterable[int]) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for index in indices:
        numbers.setdefault(index, len(numbers))
    return numbers


def of_stage(trace: Trace, further: int, ranks: int, blocks: tuple[str, int]) -> Trace:
    """The same for ranks that are `further` along in the job, of which each stage has `ranks`.

    Groups within a stage move; those that join stages have the numbers of the whole job already. `blocks` are the path
    of the list of blocks, and by how many of them the names go on.
    """
    if not further:
        return trace
    path, more = blocks
    number = re.compile(rf"(?:^|(?<=\.)){re.escape(path)}\.(\d+)")

    @cache
    def renamed(name: str) -> str:
        return number.sub(lambda match: f"{path}.{int(match[1]) + more}", name)

    return replace(
        trace,
        calls=[_moved(call, further, ranks) for call in trace.calls],
        ops=[replace(op, module=renamed(op.module)) for op in trace.ops],
        storages=[replace(storage, name=renamed(storage.name)) for storage in trace.storages],
    )


def _moved(call: Call, further: int, ranks: int) -> Call:
    members = dict(call.keywords).get(RANKS)
    if not members or min(members) // ranks != max(members) // ranks:
        return call
    shifted = tuple(rank + further for rank in members)
    return replace(call, keywords=tuple((n, shifted if n == RANKS else v) for n, v in call.keywords))
