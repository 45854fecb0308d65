"""Evaluation repeats one call hundreds of times: once two of them did the same, the others are played from the record.

Only calls of a whole module that is not in training, outside of gradients, without hooks of the program, whose
arguments are tensors and plain values and whose results are new tensors. Everything else runs.
"""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from torch import nn

from forerun.trace import ALLOCATE, FREE, OP
from forerun.virtual.cuda.call_keys import evaluation_key
from forerun.virtual.cuda.call_results import CallResults
from forerun.virtual.cuda.decoding import PlayedTokens
from forerun.virtual.cuda.token_loops import innermost_loop
from forerun.virtual.recorder import Recorder

ALIKE = 2
"""Calls that must have done the same before others are played."""


@dataclass
class CallRecord:
    """What a call did: its events in the trace, the storages that are left, and its results."""

    module: weakref.ref[nn.Module]
    events: list[tuple[str, int]]
    work: tuple[Any, ...]
    """Operators and sizes, by which two calls are compared."""
    others: set[int]
    """Survivors that no result has, such as weights that autocast has cast; they must be gone before the next call."""
    results: CallResults
    times: int = 1


class RepeatedCalls:
    """Plays calls that were seen often enough."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._records: dict[Hashable, CallRecord | None] = {}
        self._tokens = PlayedTokens(recorder)

    def __call__(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The results of a call of `module`, run or played."""
        if (loop := innermost_loop()) is not None:
            loop.turn_calls += 1
        key = evaluation_key(module, args, kwargs)
        if key is None:
            return self._tokens(original, module, args, kwargs)
        record = self._records.get(key)
        if record is not None and record.times >= ALIKE and record.module() is module:
            return self._play(record)
        begin = len(self._recorder.trace.events)
        is_over = record is not None and not record.others & self._recorder.alive()
        output = original(module, *args, **kwargs)
        if record is not None or key not in self._records:
            after = self._record(module, begin, output)
            if record is not None and after is not None and is_over and after.work == record.work:
                after.times = record.times + 1
            self._records[key] = after
        return output

    def _record(self, module: nn.Module, begin: int, output: Any) -> CallRecord | None:
        """What a call did since the event `begin`; None where playing it would not be the same."""
        trace = self._recorder.trace
        events = trace.events[begin:]
        allocations = [index for kind, index in events if kind == ALLOCATE]
        ended = {index for kind, index in events if kind == FREE}
        if not ended <= set(allocations):
            return None
        survivors = [index for index in allocations if index not in ended]
        results = CallResults.of(output, [], set(survivors), self._recorder)
        if results is None:
            return None
        work = tuple(trace.ops[i].call if kind == OP else (kind, trace.storages[i].bytes) for kind, i in events)
        others = set(survivors) - {each.storage for each in results[0].tensors}
        return CallRecord(weakref.ref(module), events, work, others, results[0])

    def _play(self, record: CallRecord) -> Any:
        places = self._recorder.repeat(record.events)
        for index in record.others:  # nobody knows their end
            self._recorder.release(places[index])
        return record.results.around(record.results.tensors_again(places, self._recorder), [])
