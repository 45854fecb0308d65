"""Decoding asks a model for one token after another, with a cache that grows: most of these calls are played.

What a call does is a list of whole numbers: bytes of storages, shapes, FLOP. Two calls that ran give a line through
them by the cache's length, and a third that runs must lie on it. From then on calls are played from the line; one runs
again where the cache has doubled, or has reached one of its own limits, such as a window that is full.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from forerun.trace import ALLOCATE, FREE, OP
from forerun.virtual.cuda.call_keys import PLAIN, has_own_hooks, is_full
from forerun.virtual.cuda.call_results import CallResults, ResultTensor
from forerun.virtual.cuda.growing_numbers import NoLineError, are_near, has_grown, on_line
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.cuda.token_loops import innermost_loop
from forerun.virtual.recorder import Recorder

MODULE, CACHE = "transformers.cache_utils", "Cache"
"""The class of transformers' caches of keys and values (4.57 to 5.24)."""
GROWTH = 2
"""A call runs again where the cache has grown so much since the last one that ran: kernels may change."""
MOST_LINES = 8
"""Lines of one kind of call, such as prompts of other lengths; the oldest goes."""


@dataclass(frozen=True)
class _Question:
    """A call before it runs."""

    key: Hashable
    length: int
    """Tokens in the cache."""
    shapes: tuple[tuple[int, ...], ...]
    cache: Any
    tensors: "list[weakref.ref[Tensor]]"
    """Those of the arguments, then those of the cache, weakly, since they end within the call."""

    @property
    def objects(self) -> list[Any]:
        """What a result may be: the cache and these tensors, where they are still there."""
        return [self.cache, *(each() for each in self.tensors)]


@dataclass(frozen=True)
class _Decoded:
    """A call that ran."""

    length: int
    """Tokens in the cache before it."""
    shapes: tuple[tuple[int, ...], ...]
    events: list[tuple[str, int]]
    work: tuple[Any, ...]
    """Of each event its operator, its bytes, or which storage ends."""
    ended: dict[int, int]
    """Storages from before that end, and the numbers of their tensors in the question."""
    storages: list[int]
    """Those that it allocates."""
    results: CallResults
    """Of the results and of the cache's tensors; their storages are places in `storages`."""
    counts: tuple[int, ...]
    """Whole numbers in the cache after the call."""

    @property
    def numbers(self) -> tuple[Any, ...]:
        """All that a line goes through."""
        return self.work, self.results.tensors, self.counts


class _Line:
    """Calls of one kind while the cache grows."""

    def __init__(self, call: _Decoded):
        self._ran = [call]
        self._begin: int | None = None
        """Shortest cache from which on calls lie on the line; None until a third one did."""
        self._differs: list[int] = []

    def takes(self, question: _Question) -> bool:
        """Whether a call is of this kind: its shapes are the same, or have grown as the cache has."""
        last = self._ran[-1]
        return has_grown(last.shapes, question.shapes, question.length - last.length)

    def reach(self, length: int) -> int:
        """How many calls from a length on can be played: the line goes so far, and no window fills up until then."""
        last = self._ran[-1].length
        if self._begin is None or length < self._begin:
            return 0
        counts = zip(*(each.counts for each in self._ran), strict=True)
        limits = [one - 1 for one, other in counts if one == other and last < one - 1]
        return max(0, min([GROWTH * last, *limits]) - length)

    def learn(self, call: _Decoded) -> None:
        """Take a call that ran."""
        length = call.length
        if len(self._ran) == 2:
            first = self._ran[0].length
            self._begin = min(self._begin or first, length) if self._is_on_line(call) else None
        before = [each for each in self._ran if each.length < length]  # another prompt may be shorter
        self._ran = [*before[-1:], call]
        if len(self._ran) == 2 and len(self._ran[0].work) == len(call.work):
            pairs = zip(self._ran[0].work, call.work, strict=True)
            self._differs = [number for number, (one, other) in enumerate(pairs) if one != other]
        elif len(self._ran) < 2:
            self._begin = None

    def _is_on_line(self, call: _Decoded) -> bool:
        try:
            on_line(self._ran[1].numbers, call.numbers, Fraction(1))
            work, *state = on_line(self._ran[0].numbers, self._ran[1].numbers, self._share(call.length))
        except NoLineError:
            return False
        is_alike = self._ran[1].results.pickled == call.results.pickled
        return is_alike and tuple(state) == call.numbers[1:] and are_near(work, call.work)

    def _share(self, length: int) -> Fraction:
        first, second = (each.length for each in self._ran)
        return Fraction(length - first, second - first)

    def play(self, question: _Question, recorder: Recorder, tokens: int = 1) -> Any:
        """Do what as many calls do, the first at the length of a question; returns the results of the last.

        Memory is that of the last, which needs most; operators are those of the call in the middle, each as often.
        """
        first, second = self._ran
        share, calls, sizes = self._share(question.length + tokens - 1), dict[int, int](), dict[int, int]()
        middle = self._share(question.length) + (share - self._share(question.length)) / 2
        numbers: dict[tuple[int, int], int] = {}  # layers do the same
        for number in range(len(second.events)) if tokens > 1 else self._differs:
            (kind, index), one, other = second.events[number], first.work[number], second.work[number]
            if kind == ALLOCATE:
                sizes[index] = on_line(one, other, share)
            elif kind == OP:
                key = id(one), id(other)
                if key not in numbers:
                    call = replace(on_line(one, other, middle), times=tokens)
                    numbers[key] = recorder.number_of(call, lambda call=call: call)
                calls[index] = numbers[key]
        ending = {index: question.tensors[number]() for index, number in second.ended.items()}
        new = recorder.repeat(second.events, {}, ending, calls, sizes)
        tensors = on_line(first.results.tensors, second.results.tensors, share)
        places = {place: new[index] for place, index in enumerate(second.storages)}
        results = replace(second.results, tensors=tensors)
        output, state = results.around(results.tensors_again(places, recorder), question.objects)
        _write(question.cache, [*state], [*on_line(first.counts, second.counts, share)])
        return output


class PlayedTokens:
    """Plays calls with a cache that was seen to grow."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._lines: dict[Hashable, list[_Line]] = {}

    def __call__(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The results of a call of `module`, run or played."""
        question = _question(module, args, kwargs)
        if question is None:
            return original(module, *args, **kwargs)
        lines = self._lines.setdefault(question.key, [])
        line, loop = next((each for each in reversed(lines) if each.takes(question)), None), innermost_loop()
        if loop is not None:
            loop.next_turn()
        if line is not None and (reach := line.reach(question.length)):
            tokens = 1 if loop is None else max(1, min(reach, loop.left - 1))  # the last one needs most memory
            output = line.play(question, self._recorder, tokens)
            if loop is not None:
                loop.stand_for(tokens)
            return output
        begin, before = len(self._recorder.trace.events), [*map(self._storage, question.tensors)]
        output = original(module, *args, **kwargs)
        call = self._decoded(question, begin, before, output)
        if line is not None and call is not None:
            line.learn(call)
        elif line is not None:
            lines.remove(line)
        elif call is not None:
            lines[:] = [*lines[1 - MOST_LINES :], _Line(call)]
        return output

    def _storage(self, tensor: "weakref.ref[Tensor]") -> int | None:
        alive = tensor()
        return None if alive is None else self._recorder.storage_of(alive)

    def _decoded(self, question: _Question, begin: int, before: list[int | None], output: Any) -> _Decoded | None:
        """What a call did since the event `begin`; None where playing it would not be the same."""
        trace = self._recorder.trace
        events = trace.events[begin:]
        storages = [index for kind, index in events if kind == ALLOCATE]
        ends = {index for kind, index in events if kind == FREE}
        survivors, order = set(storages) - ends, {index: place for place, index in enumerate(storages)}
        ended = {index: before.index(index) for index in ends - set(storages) if index in before}
        state = [value for _, _, value in _state(question.cache)]
        tensors, counts = [each for each in state if isinstance(each, Tensor)], [*filter(_is_count, state)]
        results = CallResults.of((output, tensors), question.objects, survivors, self._recorder)
        if results is None or len(ended) < len(ends - set(storages)):
            return None
        if survivors - {each.storage for each in results[0].tensors}:  # something that nobody sees keeps them
            return None
        work = tuple(
            trace.calls[trace.ops[index].call] if kind == OP
            else trace.storages[index].bytes if kind == ALLOCATE
            else f"ends {order.get(index)} {ended.get(index)}"
            for kind, index in events
        )  # fmt: skip
        relative: tuple[ResultTensor, ...] = tuple(
            replace(each, storage=order[each.storage]) for each in results[0].tensors
        )
        return _Decoded(
            question.length,
            question.shapes,
            events,
            work,
            ended,
            storages,
            replace(results[0], tensors=relative),
            tuple(counts),
        )


def _question(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Question | None:
    """What a call asks; None for one that has no cache, or has to run."""
    caches = [each for each in (*args, *kwargs.values()) if _is_cache(each)]
    if len(caches) != 1 or torch.is_grad_enabled() or has_own_hooks(module):
        return None
    leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda each: each is caches[0])
    plain = [leaf for leaf in leaves if leaf is not caches[0] and not isinstance(leaf, Tensor)]
    length = _length(caches[0])
    if not length or not all(type(leaf) in PLAIN for leaf in plain):
        return None
    arguments = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    cached = [value for _, _, value in _state(caches[0]) if isinstance(value, Tensor)]
    if not any(map(is_virtual, arguments)):
        return None
    kinds = tuple((each.dtype, is_virtual(each), is_full(each)) for each in arguments)
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    key = id(module), module.training, str(structure), tuple(plain), kinds, len(cached), autocast
    shapes = tuple(tuple(each.shape) for each in arguments)
    return _Question(key, length, shapes, caches[0], [*map(weakref.ref, (*arguments, *cached))])


def _is_cache(value: Any) -> bool:
    return any(each.__name__ == CACHE and each.__module__ == MODULE for each in type(value).__mro__)


def _length(cache: Any) -> int:
    """Tokens in a cache; 0 where it does not say, as of states that do not grow."""
    try:
        length = cache.get_seq_length()
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError):
        return 0
    return length if type(length) is int else 0


def _is_count(value: Any) -> bool:
    return type(value) is int


def _state(owner: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Tensors and whole numbers of a cache, its layers and their parts: whose, by which name or place, and which."""
    items = enumerate(owner) if isinstance(owner, list) else (owner if isinstance(owner, dict) else vars(owner)).items()
    for name, value in [*items]:
        if isinstance(value, Tensor) or _is_count(value):
            yield owner, name, value
        elif isinstance(value, list | dict) or type(value).__module__ == MODULE:
            yield from _state(value)


def _write(cache: Any, tensors: list[Tensor], counts: list[int]) -> None:
    """Give a cache the tensors and whole numbers that it has after a call."""
    for owner, name, value in [*_state(cache)]:
        new = counts.pop(0) if _is_count(value) else tensors.pop(0)
        if isinstance(owner, list | dict):
            owner[name] = new
        else:
            setattr(owner, name, new)
