"""What only a run can tell of a program: memory that grows, parameters without a gradient, products in fp32.

Each finding has the line that causes it and its bytes or seconds; a program without such faults has none.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import Device
from forerun.records import Record
from forerun.trace import ALLOCATE, FREE, OP, Trace
from forerun.units import format_bytes, format_percent, format_seconds
from forerun.virtual.cuda.steps import StepSpan, StepWatcher

GROWING_STEPS = 3
"""Steps in a row, after the first, over which memory must grow by as much each time."""
LEAST_GROWTH_BYTES = 512
FP32_SHARE = 0.5
"""Of the arithmetic of a step: a loss or a norm in fp32 is no fault."""


class ProgramFinding(Record):
    """One thing about a program that its author may want to change."""

    kind: Literal["grows", "no-gradient", "fp32-product"]
    line: str
    bytes: int | None = None
    seconds: float | None = None
    text: str


def find_faults(trace: Trace, watcher: StepWatcher, device: Device) -> list[ProgramFinding]:
    """Findings of a program that made at least two optimizer steps."""
    checks = [_growth(trace, watcher.spans), _without_gradient(watcher), _fp32_products(trace, watcher, device)]
    return [finding for finding in checks if finding is not None]


def _growth(trace: Trace, spans: Sequence[StepSpan]) -> ProgramFinding | None:
    """Memory that each step leaves behind, with the line that made most of it."""
    ends = [span.allocated_bytes for span in spans[1:]]
    growths = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    if len(growths) < GROWING_STEPS - 1 or min(growths) < LEAST_GROWTH_BYTES or max(growths) > 2 * min(growths):
        return None
    step, last = spans[-2], spans[-1]
    freed = {index for kind, index in trace.events[step.begin : last.end] if kind == FREE}
    by_line: dict[str, int] = defaultdict(int)
    waiting: list[int] = []
    for kind, index in trace.events[step.begin : step.end]:
        if kind == ALLOCATE and index not in freed:
            waiting.append(index)
        elif kind == OP:  # storages are born before their operator is noted
            for storage in waiting:
                by_line[trace.lines.get(index, "")] += trace.storages[storage].bytes
            waiting = []
    line = max(by_line, key=lambda name: by_line[name], default="")
    text = (
        f"Memory grows by {format_bytes(growths[-1])} a step; most of what stays was made at {line or 'no known line'}."
    )
    return ProgramFinding(kind="grows", line=line, bytes=growths[-1], text=text)


def _without_gradient(watcher: StepWatcher) -> ProgramFinding | None:
    missing = watcher.without_gradient
    if not missing:
        return None
    size = sum(parameter.numel() * parameter.element_size() for parameter in missing)
    text = f"{len(missing)} parameters ({format_bytes(size)}) are given to an optimizer and get no gradient."
    return ProgramFinding(kind="no-gradient", line=watcher.step_line, bytes=size, text=text)


def _fp32_products(trace: Trace, watcher: StepWatcher, device: Device) -> ProgramFinding | None:
    """Products in fp32 on a card whose tensor cores could take them."""
    cores = "tfloat32" if "tfloat32" in device.peak_flops_per_second else "float16"
    if trace.tf32 or cores not in device.peak_flops_per_second or len(watcher.spans) < 2:
        return None
    span, costs = watcher.spans[-1], PriorCosts(device)
    seconds: dict[str, float] = defaultdict(float)
    flops = fp32 = 0
    for kind, index in trace.events[span.begin : span.end]:
        call = trace.calls[trace.ops[index].call] if kind == OP else None
        if call is None or not call.flops:
            continue
        flops += call.flops
        if all(spec.dtype == "float32" for spec in call.inputs):
            fp32 += call.flops
            seconds[trace.lines.get(index, "")] += costs.device_seconds(call)
    if not flops or fp32 < FP32_SHARE * flops:
        return None
    line, total = max(seconds, key=lambda name: seconds[name]), sum(seconds.values())
    remedy = "torch.set_float32_matmul_precision('high') or autocast" if cores == "tfloat32" else "autocast"
    text = (
        f"{format_percent(fp32 / flops)} of the arithmetic is in fp32 without tensor cores: {format_seconds(total)} "
        f"a step; {remedy} would use them. Most of it at {line or 'no known line'}."
    )
    return ProgramFinding(kind="fp32-product", line=line, seconds=total, text=text)
