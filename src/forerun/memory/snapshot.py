"""Recorded allocator histories of real runs, replayed: is the simulated allocator the real one?

Reads what `torch.cuda.memory._dump_snapshot` writes after `_record_memory_history`: a pickle of plain containers, from
which nothing but containers, numbers and strings is ever loaded. Requests and frees are played through
`CachingAllocator`; the segments that PyTorch took are in the same file, so both reserved curves can be compared.
Source of the format: `torch/cuda/memory.py` (`_snapshot`), `torch/csrc/cuda/memory_snapshot.cpp`, PyTorch 2.11 to 2.13.

Not covered: `record_stream`, graph-private pools, histories whose beginning was overwritten by the ring buffer (their
first frees have no allocation; they are counted).
"""

import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import BadData
from forerun.memory.allocator import AllocatorOptions, CachingAllocator

TAKES, GIVES = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class SnapshotReplay:
    """A history played through the simulated allocator, bytes at the peak."""

    requests: int
    unknown_frees: int
    """Frees of blocks whose allocation is not in the history."""
    allocated_bytes: int
    simulated_reserved_bytes: int
    recorded_reserved_bytes: int


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every class and function: a snapshot holds none."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadData(f"A memory snapshot holds plain data only; found {module}.{name}. It was not loaded.")


def read_snapshot(path: Path) -> dict[str, Any]:
    """The content of a snapshot file.

    Raises:
        BadData: it is no pickle of plain containers, or has no device traces.
    """
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError) as error:
        raise BadData(f"{path}: not a memory snapshot of PyTorch ({error}). Write it with _dump_snapshot.") from error
    if not isinstance(content, dict) or not isinstance(content.get("device_traces"), list):
        raise BadData(
            f"{path}: has no device_traces; found {type(content).__name__}. Call torch.cuda.memory."
            f"_record_memory_history() before the step and _dump_snapshot() after it."
        )
    return content


def replay_snapshot(
    snapshot: dict[str, Any], device: int = 0, *, options: AllocatorOptions | None = None
) -> SnapshotReplay:
    """Play the history of one device through the simulated allocator.

    Raises:
        BadData: the device has no history.
    """
    traces = snapshot["device_traces"]
    if device >= len(traces) or not traces[device]:
        raise BadData(f"The snapshot has no history of device {device}; it has {len(traces)} devices.")
    return _play(traces[device], CachingAllocator(options=options))


def _play(entries: Iterable[dict[str, Any]], allocator: CachingAllocator) -> SnapshotReplay:
    keys: dict[int, int] = {}
    requests = unknown = reserved = peak_reserved = 0
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), entry.get("size", 0)
        if action == "alloc":
            keys[address] = requests
            allocator.allocate(requests, size, stream=entry.get("stream", 0))
            requests += 1
        elif action == "free_completed":  # `free_requested` comes first; other streams may still use the block then
            key = keys.pop(address, None)
            unknown += key is None
            allocator.free(key if key is not None else -1)
        elif action in TAKES:
            reserved += size
            peak_reserved = max(peak_reserved, reserved)
        elif action in GIVES:
            # PyTorch gives segments back when it empties its whole cache, one entry for each segment
            reserved -= size
            allocator.flush()
    return SnapshotReplay(
        requests=requests,
        unknown_frees=unknown,
        allocated_bytes=allocator.peak_allocated_bytes,
        simulated_reserved_bytes=allocator.peak_reserved_bytes,
        recorded_reserved_bytes=peak_reserved,
    )
