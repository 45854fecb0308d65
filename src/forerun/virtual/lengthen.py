"""The trace of a deep model from traces of shallow ones: blocks that repeat are traced once and played again.

Three traces of the same step, of models with p blocks more each time, are laid beside each other event by event. What
the second has more than the first are the repeated parts: a block's parameters, its forward and its backward pass, its
share of the optimizer. The third must have the same parts once more at the same places, and every number that changes
(list lengths, sizes, which storage is freed, numbers in names) must change as much again: that is the proof. A model of
any greater depth then is the first trace with each part played as often as it has blocks more.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

from forerun.trace import ALLOCATE, FREE, OP, Call, Op, Storage, TensorSpec, Trace

WINDOWS = 12, 6, 3
"""Events that must agree after a repeated part for it to be taken as one; fewer where no part is found so."""
FEW = 2
"""Results of an operator up to which their sizes may grow with depth; operators on lists have more results instead."""
SHORT_ROW_BYTES = 2**16
"""Of one number for each of the weights of a model with many thousands of them."""
GROWING = (
    "total_parameters",
    "trainable_parameters",
    "checkpoint_bytes",
    "paged_bytes",
    "unpacked_expert_bytes",
    "narrow_bytes",
    "warm_from",
)
NUMBER = re.compile(r"\d+")


class NotRepeating(Exception):
    """The traces do not differ by the same parts twice. Caught where traces are asked for; never shown to users."""


@dataclass(frozen=True)
class _Token:
    """What an event is, whatever its place; `like` is shared by events that may differ by numbers, None if none is."""

    exact: int
    like: int | None


@dataclass(frozen=True)
class _Part:
    """A repeated part: before which event of the first trace it stands, and its range in the second and third."""

    place: int
    second: int
    third: int
    length: int


class Lengthened:
    """Three traces proven to differ by repeated parts.

    Raises:
        NotRepeating: they do not.
    """

    def __init__(self, first: Trace, second: Trace, third: Trace, *, windows: Sequence[int] = WINDOWS):
        self._traces = first, second, third
        if first.waits or second.waits or third.waits:
            raise NotRepeating  # places of waits are not moved
        tokens = _tokens(self._traces)
        self._pairs, self._later, parts = _repeated(*tokens, windows=windows)
        self._born = [_birth_places(trace) for trace in self._traces]
        self._parts = [self._shifted(part, tokens) for part in parts]
        self._name = cache(_name)

    def _shifted(self, part: _Part, tokens: Sequence[Sequence[_Token]]) -> _Part:
        """The part moved back as far as needed for what is freed around it to follow a straight line.

        A part may stand anywhere within a stretch that repeats: where the first block is like the others but for its
        neighbours, only the place between it and them is right.
        """
        first, second, third = tokens
        stops = part.place, part.second + part.length, part.third + part.length
        room = 0
        while room < min(part.place, part.length) and (
            first[stops[0] - room - 1].exact == second[stops[1] - room - 1].exact == third[stops[2] - room - 1].exact
        ):
            room += 1
        current = ((stops[0] - n, self._pairs[stops[0] - n]) for n in range(room, 0, -1))
        stay = [self._is_linear((here, there, self._later[there])) for here, there in current]
        moved = [self._is_linear((stops[0] - n, stops[1] - n, stops[2] - n)) for n in range(room, 0, -1)]
        back = next((n for n in range(room + 1) if all(stay[: room - n]) and all(moved[room - n :])), None)
        if back is None:
            raise NotRepeating
        for n in range(1, back + 1):
            self._pairs[stops[0] - n] = stops[1] - n
            self._later[stops[1] - n] = stops[2] - n
        return _Part(part.place - back, part.second - back, part.third - back, part.length)

    def _is_linear(self, places: tuple[int, int, int]) -> bool:
        """Whether what is freed at `places` of the three traces was born at places that grow evenly."""
        kind, index = self._traces[0].events[places[0]]
        if kind != FREE:
            return True
        freed = (trace.events[place][1] for trace, place in zip(self._traces, places, strict=True))
        before, between, after = (born[index] for born, index in zip(self._born, freed, strict=True))
        return between - before == after - between

    def at(self, more: int) -> Trace:
        """The trace with every part played `more` times; 0, 1 and 2 are the three traces themselves.

        Raises:
            NotRepeating: something changes otherwise than by as much again.
        """
        first = self._traces[0]
        deep = replace(
            first, calls=[], ops=[], storages=[], events=[], lines={},
            **{name: _extrapolate_number([getattr(trace, name) for trace in self._traces], more) for name in GROWING},
        )  # fmt: skip
        assumed = [tuple(trace.assumed_values) for trace in self._traces]
        deep.assumed_values = list(_extrapolate_record(assumed, more))
        writer = _Writer(deep)
        parts: dict[int, list[_Part]] = {}
        for part in self._parts:
            parts.setdefault(part.place, []).append(part)
        for place in range(len(first.events) + 1):
            for part in parts.get(place, ()):
                self._play(writer, part, more)
            if place < len(first.events):
                self._keep(writer, place, more)
        return deep

    def _keep(self, writer: "_Writer", place: int, more: int) -> None:
        """Write an event that all depths have once."""
        second = self._pairs[place]
        places = place, second, self._later[second]
        kind, records = self._records(places)
        if kind == FREE:
            born = [self._born[n][index] for n, index in enumerate(records)]
            writer.free(_extrapolate_number(born, more))
        elif kind == ALLOCATE:
            sizes = [s.bytes for s in records]
            name = self._name(tuple(s.name for s in records), _along_depth(more))
            writer.allocate(replace(records[0], bytes=_extrapolate_number(sizes, more), name=name))
        else:
            calls = [trace.calls[op.call] for trace, op in zip(self._traces, records, strict=True)]
            call = calls[0] if calls[0] == calls[1] == calls[2] else _extrapolate_record(calls, more)
            module = self._name(tuple(op.module for op in records), _along_depth(more))
            writer.run(records[0], writer.number(call), module)
            writer.line(self._line(0, place))

    def _play(self, writer: "_Writer", part: _Part, more: int) -> None:
        """Write a repeated part `more` times."""
        seconds = range(part.second, part.second + part.length)
        places = [(second, self._later[second], part.third + n) for n, second in enumerate(seconds)]
        events = [self._records(three, of=(1, 2, 2)) for three in places]
        calls = self._traces[1].calls
        numbers = {records[0].call: writer.number(calls[records[0].call]) for kind, records in events if kind == OP}
        for turn in range(1, more + 1):
            weights = 2 - more, more - turn, turn - 1  # of the values in turn 1 of 1, 1 of 2, 2 of 2; they add up to 1
            for second, (kind, records) in zip(seconds, events, strict=True):
                if kind == FREE:
                    born = [self._born[n][index] for n, index in zip((1, 2, 2), records, strict=True)]
                    writer.free(sum(w * b for w, b in zip(weights, born, strict=True)))
                elif kind == ALLOCATE:
                    writer.allocate(replace(records[0], name=self._name(tuple(s.name for s in records), weights)))
                else:
                    call = numbers[records[0].call]
                    writer.run(records[0], call, self._name(tuple(op.module for op in records), weights))
                    writer.line(self._line(1, second))

    def _records(self, places: Sequence[int], of: tuple[int, int, int] = (0, 1, 2)) -> tuple[str, list[Any]]:
        """The kind of the events at `places`, and their operators, storages, or indices of freed storages."""
        events = [self._traces[n].events[place] for n, place in zip(of, places, strict=True)]
        kinds = {kind for kind, _ in events}
        if len(kinds) > 1:
            raise NotRepeating
        kind = kinds.pop()
        if kind == FREE:
            return kind, [index for _, index in events]
        return kind, [
            (self._traces[n].ops if kind == OP else self._traces[n].storages)[index]
            for n, (_, index) in zip(of, events, strict=True)
        ]

    def _line(self, number: int, place: int) -> str | None:
        trace = self._traces[number]
        return trace.lines.get(trace.events[place][1])


class _Writer:
    """Writes events one after another."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._calls: dict[Call, int] = {}
        self._alive: dict[int, int] = {}

    def allocate(self, storage: Storage) -> None:
        self._alive[len(self.trace.events)] = len(self.trace.storages)
        self.trace.events.append((ALLOCATE, len(self.trace.storages)))
        self.trace.storages.append(storage)

    def free(self, place: int) -> None:
        index = self._alive.pop(place, None)
        if index is None:
            raise NotRepeating
        self.trace.events.append((FREE, index))

    def number(self, call: Call) -> int:
        index = self._calls.get(call)
        if index is None:
            index = self._calls[call] = len(self.trace.calls)
            self.trace.calls.append(call)
        return index

    def run(self, op: Op, call: int, module: str) -> None:
        self.trace.events.append((OP, len(self.trace.ops)))
        self.trace.ops.append(Op(call, op.phase, op.micro_step, module, op.recomputed))

    def line(self, line: str | None) -> None:
        if line is not None:
            self.trace.lines[len(self.trace.ops) - 1] = line


def _birth_places(trace: Trace) -> dict[int, int]:
    return {index: place for place, (kind, index) in enumerate(trace.events) if kind == ALLOCATE}


def _tokens(traces: Sequence[Trace]) -> list[list[_Token]]:
    numbers: dict[Any, int] = {}

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    return [list(_tokens_of(trace, number, cache(lambda text: NUMBER.sub("#", text)))) for trace in traces]


def _tokens_of(trace: Trace, number: Callable[[Any], int], masked: Callable[[str], str]) -> Iterator[_Token]:
    calls = [(number(call), number(call.name)) for call in trace.calls]
    producers = _producers(trace)
    like_of_storage: dict[int, int | None] = {}
    exact_of_storage: dict[int, int] = {}
    for kind, index in trace.events:
        if kind == OP:
            op = trace.ops[index]
            place = op.phase, op.micro_step, masked(op.module), op.recomputed, trace.lines.get(index)
            exact, name = calls[op.call]
            yield _Token(number((OP, exact, place)), number((OP, "like", name, place)))
            continue
        if kind == ALLOCATE:
            s = trace.storages[index]
            producer, results = producers.get(index, (None, 0))
            made_by = None
            if producer is not None:
                made_by = calls[trace.ops[producer].call][1], masked(trace.ops[producer].module)
            place = s.phase, s.owner, s.freed_in, masked(s.name), s.stream, made_by
            exact_of_storage[index] = number((place, s.bytes))
            grows = producer is not None and results <= FEW and _may_grow(trace.calls[trace.ops[producer].call])
            like_of_storage[index] = number((place, "like", results)) if grows else None
        like = like_of_storage[index]
        yield _Token(number((kind, exact_of_storage[index])), None if like is None else number((kind, "like", like)))


def _producers(trace: Trace) -> dict[int, tuple[int, int]]:
    """Operator that each storage was made for, and how many it made: a storage's events stand before its operator's."""
    producers: dict[int, tuple[int, int]] = {}
    waiting: list[int] = []
    for kind, index in trace.events:
        if kind == ALLOCATE:
            waiting.append(index)
        elif kind == OP:
            producers.update((storage, (index, len(waiting))) for storage in waiting)
            waiting = []
    return producers


def _repeated(
    first: Sequence[_Token], second: Sequence[_Token], third: Sequence[_Token], windows: Sequence[int] = WINDOWS
) -> tuple[list[int], list[int], list[_Part]]:
    """Where each of `first` stands in `second`, each of `second` in `third`, and the parts that are repeated."""
    pairs, gaps = _aligned(first, second, windows)
    later, later_gaps = _aligned(second, third, windows)
    if len(gaps) != len(later_gaps) or not gaps:
        raise NotRepeating
    parts = []
    for (place, start, stop), (after, third_start, third_stop) in zip(gaps, later_gaps, strict=True):
        exact = [token.exact for token in second[start:stop]]
        if after != stop or exact != [token.exact for token in third[third_start:third_stop]]:
            raise NotRepeating
        parts.append(_Part(place, start, third_start, stop - start))
    return pairs, later, parts


def _may_grow(call: Call) -> bool:
    """Whether a call's results may be larger in a deeper model: of a list, or of a short row with a number for each
    weight, as the norms of gradients on their way over the ranks."""
    if any(isinstance(argument, tuple) and TensorSpec in map(type, argument) for argument in call.arguments):
        return True
    return all(len(spec.shape) <= 1 and spec.bytes <= SHORT_ROW_BYTES for spec in (*call.inputs, *call.outputs))


def _aligned(
    few: Sequence[_Token], many: Sequence[_Token], windows: Sequence[int]
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Where each of `few` stands in `many`, and what `many` has more: (place in few, start, stop in many)."""
    pairs: list[int] = []
    gaps: list[tuple[int, int, int]] = []
    there, spare = 0, len(many) - len(few)
    for here, token in enumerate(few):
        if there >= len(many) or token.exact != many[there].exact:
            length = _gap(few, here, many, there, spare, windows)
            if length:
                gaps.append((here, there, there + length))
                there, spare = there + length, spare - length
        pairs.append(there)
        there += 1
    if there != len(many):
        gaps.append((len(few), there, len(many)))
    return pairs, gaps


def _gap(
    few: Sequence[_Token], here: int, many: Sequence[_Token], there: int, spare: int, windows: Sequence[int]
) -> int:
    """How many of `many` to leave out so that it goes on as `few` does; 0 where only numbers differ."""

    def same(first: _Token, second: _Token) -> bool:
        return first.exact == second.exact

    def fits(length: int, window: int, begins: Any, goes_on: Any) -> bool:
        start = there + length
        after = map(goes_on, few[here + 1 : here + window], many[start + 1 : start + window])
        return start < len(many) and begins(few[here], many[start]) and all(after)

    exact = [token.exact for token in many[: there + spare]]
    for length in range(1, min(spare, there) + 1):  # what stands there once more is the likeliest
        if exact[there - length : there] == exact[there : there + length] and fits(length, windows[-1], same, same):
            return length
    for begins, goes_on, least in ((same, same, 1), (same, _alike, 1), (_alike, _alike, 0)):
        for window in windows:
            for length in range(least, spare + 1):
                if fits(length, window, begins, goes_on):
                    return length
    raise NotRepeating


def _alike(first: _Token, second: _Token) -> bool:
    return first.exact == second.exact or (first.like is not None and first.like == second.like)


def _extrapolate_number(values: Sequence[int], more: int) -> int:
    """Three numbers that grow evenly, carried on."""
    if any(after - before != values[1] - values[0] for before, after in pairwise(values)):
        raise NotRepeating
    return values[0] + (values[1] - values[0]) * more


def _along_depth(more: int) -> tuple[int, int, int]:
    return 1 - more, more, 0


def _name(names: tuple[str, str, str], weights: tuple[int, int, int]) -> str:
    """A name whose numbers are the weighted sums of those in three names that are alike otherwise."""
    if names[0] == names[1] == names[2]:
        return names[0]
    numbers = [[int(digits) for digits in NUMBER.findall(name)] for name in names]
    summed = iter([sum(w * n for w, n in zip(weights, column, strict=True)) for column in zip(*numbers, strict=True)])
    return NUMBER.sub(lambda _: str(next(summed)), names[0])


def _extrapolate_record(values: Sequence[Any], more: int) -> Any:
    """Three alike records with every number, and every list of tensors, carried on."""
    first, second, third = values
    if first == second == third:
        return first
    if isinstance(first, Call | TensorSpec):
        parts = {f.name: _extrapolate_record([getattr(v, f.name) for v in values], more) for f in fields(first)}
        return type(first)(**parts)
    if isinstance(first, tuple) and len(first) == len(second) == len(third):
        return tuple(_extrapolate_record(column, more) for column in zip(*values, strict=True))
    if isinstance(first, tuple):
        return _extrapolate_list(values, more)
    if isinstance(first, int) and not isinstance(first, bool):
        return _extrapolate_number(values, more)
    raise NotRepeating


def _extrapolate_list(lists: Sequence[tuple[Any, ...]], more: int) -> tuple[Any, ...]:
    """A list that has the same items more each time."""
    numbers: dict[Any, int] = {}
    first, second, third = ([_Token(numbers.setdefault(item, len(numbers)), None) for item in v] for v in lists)
    _, _, parts = _repeated(first, second, third)
    items: list[Any] = []
    for place in range(len(first) + 1):
        for part in parts:
            if part.place == place:
                items += lists[1][part.second : part.second + part.length] * more
        items += lists[0][place : place + 1]
    return tuple(items)
