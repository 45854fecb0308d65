"""A traced step on a card of a given size: does it fit, and what will the driver show?

The step is replayed with nothing in its way, and when that needs more than the card has, once more with the card's
limit: the allocator then gives cached segments back, as a real one does before it fails. It fits when it still runs
with the conservative context and `MARGIN_SHARE` of the card kept free.
"""

from dataclasses import dataclass, replace

from forerun.hardware.catalogue import Device
from forerun.memory.alloc_conf import options_on
from forerun.memory.allocator import AllocatorOptions, SimulatedOutOfMemory
from forerun.memory.overhead import outside_bytes, uses_cudnn, workspace_bytes
from forerun.memory.reductions import resident_threads, sized_for
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.records import Range
from forerun.trace import Trace

FRAGMENTATION_SHARE = 1.08
"""Conservative share on reserved bytes, for the order of allocations that the trace does not see: of 16 published runs
whose peak allocated was forecast within 0.6 %, device memory was up to 5.4 % above the expected number."""
LEFT_SHARE = 2.0
"""Conservative share on what steps of other lengths leave: eleven of twelve random orders of the same lengths left at
most 1.7 to 2.1 times the median, at each of four lengths (`forecasting/varying.py`)."""
MARGIN_SHARE = 0.01
"""Share of the card kept free for what the trace does not see; a choice, not a measurement."""


@dataclass(frozen=True)
class CardReplay:
    """A replay on one card."""

    memory: MemoryReplay
    fits: bool
    device_bytes: Range
    """Bytes that the driver shows: segments, context, and managed memory while there is room for it."""
    returns_cache: bool
    """It fits only because the allocator gives cached memory back, which costs time."""


def replay_on_card(
    trace: Trace, device: Device, *, options: AllocatorOptions | None = None, passes: int = 8,
    keeps_curve: bool = True, roomy_replays: dict[tuple[int, ...], MemoryReplay] | None = None, left_bytes: int = 0,
) -> CardReplay:  # fmt: skip
    """Replay `trace` on the GPU `device`.

    What the trace needs with nothing in its way is looked up in, and added to, `roomy_replays`: cards with the same
    library workspaces and as many threads share it. `options` are the trace's own where they are not stated;
    `left_bytes` stay cached from steps of other shapes while there is room for them.
    """
    context = _outside(trace, device)
    total = min(device.memory_bytes, int(device.memory_bytes * trace.memory_fraction + context.conservative))
    options = options_on(device, trace.allocator) if options is None else options
    blocks, trace = workspace_bytes(device), sized_for(trace, device)
    alike = (*blocks, resident_threads(device), options.expandable_segments)

    def replay(limit: float | None) -> MemoryReplay:
        capacity = None if limit is None else int(limit)
        return replay_memory(
            trace, workspace_bytes=blocks, passes=passes, options=options, capacity_bytes=capacity,
            keeps_curve=keeps_curve,
        )  # fmt: skip

    others = {} if roomy_replays is None else roomy_replays
    roomy = others.get(alike) or replay(None)
    others[alike] = roomy
    roomy = replace(roomy, peak_reserved_bytes=roomy.peak_reserved_bytes + left_bytes)
    needed_bytes = roomy.peak_reserved_bytes * FRAGMENTATION_SHARE + context.conservative
    if needed_bytes <= total:
        most = min(float(total), needed_bytes + (LEFT_SHARE - 1) * left_bytes)
        return CardReplay(roomy, True, _range(roomy, device, trace, most), False)
    try:
        replay(total * (1 - MARGIN_SHARE) - context.conservative)
        room = total - context.expected
        cramped = replay(room)
        cached = min(int(room), cramped.peak_reserved_bytes + left_bytes)
        cramped = replace(cramped, peak_reserved_bytes=max(cramped.peak_reserved_bytes, cached))
    except SimulatedOutOfMemory:
        return CardReplay(roomy, False, _range(roomy, device, trace, needed_bytes), False)
    return CardReplay(cramped, True, _range(cramped, device, trace, total), True)


def _outside(trace: Trace, device: Device) -> Range:
    return outside_bytes(device, trace.world_size, with_cudnn=device.cudnn_bytes > 0 and uses_cudnn(trace))


def _range(memory: MemoryReplay, device: Device, trace: Trace, conservative: float) -> Range:
    """Three scenarios of what the driver shows; in each, managed memory takes of the card what the others leave.

    Room for it at the conservative number only, in all three, would let less be shown where more is reserved.
    """
    context = _outside(trace, device)
    expected = memory.peak_reserved_bytes + context.expected

    def with_managed(needed_bytes: float) -> float:
        return needed_bytes + max(0.0, min(trace.paged_bytes, device.memory_bytes - needed_bytes))

    return Range(
        optimistic=min(memory.peak_allocated_bytes + context.optimistic, expected),
        expected=with_managed(expected),
        conservative=with_managed(max(expected, conservative)),
    )
