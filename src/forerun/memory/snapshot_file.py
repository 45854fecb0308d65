"""The history of a program's memory as a file for pytorch.org/memory_viz, as `torch.cuda.memory._dump_snapshot` writes.

Plain containers in the layout of `torch.cuda.memory._snapshot` (`torch/cuda/memory.py`, `torch/csrc/cuda/Module.cpp`,
PyTorch 2.13). A frame is where an operator was called: the program's line with the operator's name, then its module,
its phase, and what its memory is for. Frees carry the frames of their allocation.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.memory.history import AllocatorHistory, HistoryBlock
from forerun.memory.replay import category
from forerun.trace import ALLOCATE, OP, Category, Trace
from forerun.units import MICRO

PICKLE_PROTOCOL = 4
"""The page reads protocols 2 to 4 (`torch/utils/viz/MemoryViz.js`, `unpickle`, 2.13)."""
WORKSPACE_FRAMES = [{"filename": "cuBLAS", "line": 0, "name": "workspace"}]
UNKNOWN_CATEGORY = "unknown"
"""The page fails on entries with categories none of which has this name (`MemoryViz.js`, `annotate_snapshot`, 2.13)."""
LASTING = {Category.PARAMETER.value, Category.GRADIENT.value, Category.OPTIMIZER_STATE.value}
"""What outlives the phase in which it was made."""
Frame = dict[str, Any]


def snapshot_of(history: AllocatorHistory, trace: Trace, host_seconds: Sequence[float]) -> dict[str, Any]:
    """A snapshot of one device; `host_seconds` is the time of each event of `trace`."""
    frames = _Frames(trace)
    entries = []
    for entry in history.entries:
        line: dict[str, Any] = {
            "action": entry.action, "addr": entry.address, "size": entry.size, "stream": entry.stream,
            "time_us": round(host_seconds[min(entry.event, len(host_seconds) - 1)] / MICRO) if host_seconds else 0,
            "pool_id": (0, 0), "frames": frames.at(entry.event) if entry.storage is None else frames.of(entry.storage),
        }  # fmt: skip
        if entry.action == "oom":
            line = {name: value for name, value in line.items() if name != "addr"} | {"device_free": entry.free_bytes}
        elif entry.storage is not None:
            line["category"] = frames.category(entry.storage)
        entries.append(line)
    segments = []
    for segment in history.segments:
        used = [block for block in segment.blocks if block.storage is not None]
        allocated, requested = sum(block.size for block in used), sum(block.requested_size for block in used)
        segments.append(
            {
                "device": 0, "address": segment.address, "total_size": segment.size, "stream": segment.stream,
                "allocated_size": allocated, "active_size": allocated, "requested_size": requested,
                "segment_type": "small" if segment.is_small else "large", "segment_pool_id": (0, 0),
                "is_expandable": False, "frames": [], "blocks": [_block(block, frames) for block in segment.blocks],
            }
        )  # fmt: skip
    settings = {"expandable_segments": False, "garbage_collection_threshold": 0.0, "max_split_size": -1}
    return {
        "segments": segments, "device_traces": [entries], "external_annotations": [], "allocator_settings": settings,
    }  # fmt: skip


def write_snapshot(path: Path, snapshot: dict[str, Any]) -> None:
    """Write a snapshot as `torch.cuda.memory._dump_snapshot` does."""
    path.write_bytes(pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))


def _block(block: HistoryBlock, frames: "_Frames") -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": "inactive" if block.storage is None else "active_allocated",
        "frames": [] if block.storage is None else frames.of(block.storage),
    }


class _Frames:
    """Frames of storages and events; equal ones are one list, which keeps the file small."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._makers: dict[int, int] = {}
        """Storage → operator that made it."""
        self._operators: list[int | None] = [None] * (len(trace.events) + 1)
        """Event → operator that it belongs to: the next one."""
        self._lists: dict[tuple[Any, ...], list[Frame]] = {}
        operator: int | None = None
        for position in range(len(trace.events) - 1, -1, -1):
            kind, index = trace.events[position]
            operator = index if kind == OP else operator
            self._operators[position] = operator
            if kind == ALLOCATE and operator is not None:
                self._makers[index] = operator

    def of(self, storage: int) -> list[Frame]:
        """Where a storage was made; a negative one is a workspace."""
        if storage < 0:
            return WORKSPACE_FRAMES
        return self._frames(self._makers.get(storage), self.category(storage), self._trace.storages[storage].name)

    def at(self, event: int) -> list[Frame]:
        """What the program was doing at an event."""
        return self._frames(self._operators[min(event, len(self._operators) - 1)])

    def category(self, storage: int) -> str:
        """What a storage counts as."""
        kind = Category.OTHER if storage < 0 else category(self._trace.storages[storage])
        return UNKNOWN_CATEGORY if kind is Category.OTHER else kind.value

    def _frames(self, operator: int | None, kind: str = "", parameter: str = "") -> list[Frame]:
        if operator is None:
            return []
        op = self._trace.ops[operator]
        name, line = self._trace.calls[op.call].name, self._trace.lines.get(operator, "")
        module = parameter or op.module
        key = line, name, module, op.phase, kind
        if key not in self._lists:
            file, _, number = line.rpartition(":")
            place = {"filename": file or "unknown line", "line": int(number) if number else 0, "name": name}
            further = {"module": module, "phase": "" if kind in LASTING else op.phase.value, "kind": kind}
            frames = [{"filename": what, "line": 0, "name": value} for what, value in further.items() if value]
            self._lists[key] = [place, *frames]
        return self._lists[key]
