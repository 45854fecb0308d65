"""Memory that the allocator holds and no tensor uses, and what it would hold with expandable segments."""

from collections.abc import Sequence
from dataclasses import replace

from forerun.forecasting.allocator_warnings import unused_bytes
from forerun.forecasting.held_tensors import ProgramFinding
from forerun.hardware.catalogue import Device
from forerun.memory.alloc_conf import options_on
from forerun.memory.card import replay_on_card
from forerun.memory.replay import MemoryReplay
from forerun.trace import EMPTY_CACHE, OP, Trace
from forerun.units import format_bytes
from forerun.virtual.cuda.steps import StepSpan


def find_emptying(trace: Trace, spans: Sequence[StepSpan]) -> ProgramFinding | None:
    """`torch.cuda.empty_cache()` in a step: what is given back is asked for again, segment by segment."""
    calls = {number for number, call in enumerate(trace.calls) if call.name == EMPTY_CACHE}
    if not calls or not spans:
        return None
    ops = (index for kind, index in trace.events[spans[-1].begin : spans[-1].end] if kind == OP)
    line = next((trace.lines.get(index, "") for index in ops if trace.ops[index].call in calls), None)
    if line is None:
        return None
    text = (
        f"torch.cuda.empty_cache() in every step at {line or 'no known line'}: the GPU runs dry, and the driver is "
        "asked for the same memory again, one call for each segment, which is not in the time."
    )
    return ProgramFinding(kind="empties-cache", line=line, text=text)


def find_fragmentation(trace: Trace, device: Device, memory: MemoryReplay) -> ProgramFinding | None:
    """What a program's allocator would hold with expandable segments, where that is much less."""
    unused = unused_bytes(memory.peak_allocated_bytes, memory.peak_reserved_bytes, device, trace.allocator)
    if not unused:
        return None
    options = replace(options_on(device, trace.allocator), expandable_segments=True)
    whole = replace(trace, warm_from=trace.recovered_at)
    reserved = replay_on_card(whole, device, options=options, passes=1, keeps_curve=False).memory.peak_reserved_bytes
    if (saves := memory.peak_reserved_bytes - reserved) < unused / 2:
        return None
    text = (
        f"{format_bytes(unused)} of the {format_bytes(memory.peak_reserved_bytes)} that the allocator reserves are "
        f"used by no tensor at the peak. With PYTORCH_ALLOC_CONF=expandable_segments:True it reserves "
        f"{format_bytes(reserved)}."
    )
    return ProgramFinding(kind="fragmentation", line="", bytes=saves, text=text)
