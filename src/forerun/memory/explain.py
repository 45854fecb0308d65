"""What is alive at the peak: the largest tensors, and bytes by module and category."""

from collections import defaultdict

from forerun.memory.allocator import round_size
from forerun.memory.explanation import LiveTensor
from forerun.memory.replay import MemoryReplay, category
from forerun.trace import ALLOCATE, FREE, OP, Op, Trace


def live_at_peak(trace: Trace, replay: MemoryReplay) -> list[LiveTensor]:
    """Allocations alive at the replay's peak, largest first."""
    alive: dict[int, int] = {}
    producers: dict[int, int] = {}
    waiting: list[int] = []
    for kind, index in trace.events[: replay.peak_event + 1]:
        if kind == ALLOCATE:
            alive[index] = 1
            waiting.append(index)
        elif kind == FREE:
            alive.pop(index, None)
        elif kind == OP:
            producers |= dict.fromkeys(waiting, index)
            waiting.clear()
    # A storage's event comes before its operator's, so what was born last is named by the operator after the peak.
    for kind, index in trace.events[replay.peak_event + 1 :]:
        if kind == OP:
            producers |= dict.fromkeys(waiting, index)
            break
    tensors = [_tensor(trace, index, producers.get(index)) for index in alive]
    return sorted(tensors, key=lambda tensor: -tensor.bytes)


def _tensor(trace: Trace, index: int, producer: int | None) -> LiveTensor:
    storage = trace.storages[index]
    op = None if producer is None else trace.ops[producer]
    if storage.name or (op is not None and op.phase is not storage.phase):
        op = producer = None  # it was there before the step
    return LiveTensor(
        bytes=round_size(storage.bytes),
        category=category(storage).value,
        module=storage.name or (op.module if op else ""),
        operator=trace.calls[op.call].name if op else "",
        phase=storage.phase.value,
        line=trace.lines.get(producer, "") if producer is not None else "",
    )


def by_module(tensors: list[LiveTensor], depth: int = 4) -> dict[str, dict[str, int]]:
    """Bytes by module path, cut to `depth` names with numbers as *, and category; largest module first."""
    sizes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for tensor in tensors:
        parts = ["*" if part.isdigit() else part for part in tensor.module.split(".")]
        sizes[".".join(parts[:depth]) or "(step)"][tensor.category] += tensor.bytes
    return {name: dict(parts) for name, parts in sorted(sizes.items(), key=lambda item: -sum(item[1].values()))}


def op_at_peak(trace: Trace, replay: MemoryReplay) -> Op | None:
    """The operator that was about to run when the most was allocated; None for an empty trace."""
    return next((trace.ops[index] for kind, index in trace.events[replay.peak_event :] if kind == OP), None)
