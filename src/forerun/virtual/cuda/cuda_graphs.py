"""CUDA graphs: what is captured runs once, and each replay issues its kernels again, from the graph.

`torch.cuda.graph` and `make_graphed_callables` are PyTorch's own; only the graph itself is ours. Memory of a capture
comes from a pool of its own, as there: nothing else gets what the capture freed. Values that a replay would change stay
those of the capture. A graph that holds an optimizer's update makes a step with each replay.

Not covered: a graph's own memory on the device, capturing operators that the card refuses to capture (reads of values).
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from forerun.trace import OP, Phase
from forerun.virtual.backend import Stream, VirtualBackend
from forerun.virtual.recorder import Recorder

POOL_STREAMS = 1 << 20
"""Streams from this number on are pools: the allocator gives a block only to the stream that it was made for."""
_POOLS = itertools.count(1)
_CAPTURING: list["CapturedGraph"] = []
AFTER_UPDATE: list[Callable[[], None]] = []
"""Called after each replay that updated parameters."""


def is_capturing() -> bool:
    """Whether a graph is being captured."""
    return bool(_CAPTURING)


def _new_pool() -> tuple[int, int]:
    return 0, next(_POOLS)


class CapturedGraph:
    """`torch.cuda.CUDAGraph`."""

    recorder: Recorder

    def __init__(self, keep_graph: bool = False):
        self._pool: tuple[int, int] | None = None
        self._begin, self._operators = 0, ()
        self._is_captured = self._updates = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: object) -> None:
        """Capture what follows; memory comes from `pool`, or a new one."""
        if self._is_captured or _CAPTURING:
            raise RuntimeError("This CUDAGraph has been captured already, or another one is being captured.")
        self._pool = _new_pool() if pool is None else tuple(pool)
        self._begin = len(self.recorder.trace.events)
        _CAPTURING.append(self)
        VirtualBackend._streams.append(Stream(number=POOL_STREAMS + self._pool[1]))

    def capture_end(self) -> None:
        """What was issued since is the graph."""
        if not _CAPTURING or _CAPTURING[-1] is not self:
            raise RuntimeError("capture_end() was called without capture_begin() of this CUDAGraph.")
        VirtualBackend._streams.pop()
        _CAPTURING.pop()
        events = self.recorder.trace.events[self._begin :]
        self._operators = tuple(index for kind, index in events if kind == OP)
        self._updates = any(self.recorder.trace.ops[index].phase is Phase.OPTIMIZER for index in self._operators)
        self._is_captured = True

    def replay(self) -> None:
        """Issue the captured kernels; nothing is allocated."""
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self.recorder.replay(self._operators, None if self._updates else self.recorder.current_phase)
        for tell in AFTER_UPDATE if self._updates else ():
            tell()

    def pool(self) -> tuple[int, int]:
        """For `capture_begin` of others."""
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def reset(self) -> None:
        """Forget the capture."""
        self._operators, self._is_captured = (), False

    def instantiate(self) -> None:
        """It is ready when its capture ends."""

    def enable_debug_mode(self) -> None:
        """There is nothing to dump."""

    def debug_dump(self, debug_path: str) -> None:
        """There is nothing to dump."""


def graph_answers(recorder: Recorder) -> dict[str, Any]:
    """Names of `torch.cuda` and `torch.cuda.graphs`."""
    own = type("CUDAGraph", (CapturedGraph,), {"recorder": recorder, "__module__": torch.cuda.graphs.__name__})
    return {"CUDAGraph": own, "graph_pool_handle": _new_pool, "is_current_stream_capturing": is_capturing}
