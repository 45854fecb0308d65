"""What only a run can tell of a program: memory that grows, parameters without a gradient, waiting for data, and so on.

Each finding has the line that causes it and its bytes or seconds where it has a size; a program without such faults
has none. What is large at the peak of memory is in `held_tensors.py`.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.arithmetic import format_of
from forerun.forecasting.collectives import data_parallel_ranks
from forerun.forecasting.fragmentation import find_emptying, find_fragmentation
from forerun.forecasting.held_tensors import ProgramFinding, find_held_tensors
from forerun.hardware.catalogue import Device
from forerun.memory.replay import MemoryReplay
from forerun.trace import ALLOCATE, FREE, OP, Issuer, Phase, Trace
from forerun.units import format_bytes, format_percent, format_seconds
from forerun.virtual.cuda.steps import StepSpan, StepWatcher

GROWING_STEPS = 3
"""Steps in a row, after the first, over which memory must grow by as much each time."""
LEAST_GROWTH_BYTES = 512
FP32_SHARE = 0.5
"""Of the arithmetic of a step: a loss or a norm in fp32 is no fault."""
FP64_SHARE = 0.01
"""Of the arithmetic of a step: it costs up to 64 times as much."""
WAIT_SHARE = 0.25
"""Of a step: waiting that takes less is not worth a change."""
SYNC_SHARE = 0.05
"""Of a step: so little is lost where a loss is read once."""
HOST_WORK_SHARE = 0.1
"""Of a step: what the host computes beside less is hidden behind the device, or a batch on its way."""
LEAST_WAIT_SECONDS = 0.01
"""Batches are made on a virtual GPU, whose bookkeeping takes some of the time that is measured."""


def find_faults(
    trace: Trace, watcher: StepWatcher, device: Device, memory: MemoryReplay, step_seconds: float
) -> list[ProgramFinding]:
    """Findings of a program that made at least two optimizer steps; a warm one takes `step_seconds`."""
    checks = [
        _growth(trace, watcher.spans),
        _without_gradient(watcher),
        _fp32_products(trace, watcher, device),
        _fp64_products(trace, watcher, device),
        _emulated_products(trace, watcher, device),
        _host_syncs(trace, watcher, device),
        _host_work(trace, watcher, device, step_seconds),
        _undivided_accumulation(trace, watcher),
        _missing_sampler(trace, watcher),
        _waits_for_data(watcher, step_seconds),
        find_fragmentation(trace, device, memory),
        find_emptying(trace, watcher.spans),
        *find_held_tensors(trace, memory),
    ]
    return [finding for finding in checks if finding is not None]


def _growth(trace: Trace, spans: Sequence[StepSpan]) -> ProgramFinding | None:
    """Memory that each step leaves behind, with the line that made most of it."""
    ends = [span.allocated_bytes for span in spans[1:]]
    growths = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    if len(growths) < GROWING_STEPS - 1 or min(growths) < LEAST_GROWTH_BYTES or max(growths) > 2 * min(growths):
        return None
    step, last = spans[-2], spans[-1]
    freed = {index for kind, index in trace.events[step.begin : last.end] if kind == FREE}
    born = {index for kind, index in trace.events[step.begin : step.end] if kind == ALLOCATE and index not in freed}
    by_line: dict[str, int] = defaultdict(int)
    for storage, line in birth_lines(trace, born).items():
        by_line[line] += trace.storages[storage].bytes
    line = max(by_line, key=lambda name: by_line[name], default="")
    text = (
        f"Memory grows by {format_bytes(growths[-1])} a step; most of what stays was made at {line or 'no known line'}."
    )
    return ProgramFinding(kind="grows", line=line, bytes=growths[-1], text=text)


def birth_lines(trace: Trace, storages: set[int]) -> dict[int, str]:
    """The line of the program that made each of `storages`."""
    lines: dict[int, str] = {}
    waiting: list[int] = []
    for kind, index in trace.events:
        if kind == ALLOCATE and index in storages:
            waiting.append(index)
        elif kind == OP and waiting:  # storages are born before their operator is noted
            lines.update(dict.fromkeys(waiting, trace.lines.get(index, "")))
            waiting = []
    return lines


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
    if not device.has_tensor_cores:
        return None
    share, line, seconds = _products_in("float32", trace, watcher, device)
    if share < FP32_SHARE:
        return None
    asks = "torch.backends.cudnn.allow_tf32 and " if not trace.tf32_convolutions else ""
    remedy = f"{asks}torch.set_float32_matmul_precision('high') or autocast" if cores == "tfloat32" else "autocast"
    text = (
        f"{format_percent(share)} of the arithmetic is in fp32 without tensor cores: {format_seconds(seconds)} "
        f"a step; {remedy} would use them. Most of it at {line or 'no known line'}."
    )
    return ProgramFinding(kind="fp32-product", line=line, seconds=seconds, text=text)


def _fp64_products(trace: Trace, watcher: StepWatcher, device: Device) -> ProgramFinding | None:
    """Products in fp64, which NumPy's arrays bring in unasked."""
    share, line, seconds = _products_in("float64", trace, watcher, device)
    if share < FP64_SHARE:
        return None
    times = device.peak("float32") / device.peak("float64")
    text = (
        f"{format_percent(share)} of the arithmetic is in fp64, at {times:.0f} times the cost of fp32 on this card: "
        f"{format_seconds(seconds)} a step. NumPy's arrays are fp64, and stay so in torch.from_numpy; .float() on data "
        f"and model ends it. Most of it at {line or 'no known line'}."
    )
    return ProgramFinding(kind="fp64-product", line=line, seconds=seconds, text=text)


def _emulated_products(trace: Trace, watcher: StepWatcher, device: Device) -> ProgramFinding | None:
    """Products in bfloat16 on a card before Ampere, where PyTorch's own check says that it is supported."""
    share, line, seconds = _products_in("bfloat16", trace, watcher, device) if device.emulates_bf16 else (0.0, "", 0.0)
    if share < FP32_SHARE:
        return None
    faster = "float16" if device.has_tensor_cores else "float32"
    times = device.peak(faster) / device.peak("bfloat16")
    text = (
        f"{format_percent(share)} of the arithmetic is in bfloat16, which {device.name} has no hardware for, though "
        f"torch.cuda.is_bf16_supported() says yes: {format_seconds(seconds)} a step. {faster} has {times:.1f} times "
        f"its rate here. Most of it at {line or 'no known line'}."
    )
    return ProgramFinding(kind="emulated-bf16", line=line, seconds=seconds, text=text)


def _products_in(dtype: str, trace: Trace, watcher: StepWatcher, device: Device) -> tuple[float, str, float]:
    """Share of a step's arithmetic with all operands in `dtype`, the line with most of its time, and its seconds."""
    if len(watcher.spans) < 2:
        return 0.0, "", 0.0
    span, costs = watcher.spans[-1], PriorCosts.of(trace, device)
    seconds: dict[str, float] = defaultdict(float)
    flops = own = 0
    for kind, index in trace.events[span.begin : span.end]:
        call = trace.calls[trace.ops[index].call] if kind == OP else None
        if call is None or not call.flops:
            continue
        flops += call.flops * call.times
        if format_of(call, trace, device) == dtype and all(spec.dtype == dtype for spec in call.inputs):
            own += call.flops * call.times
            seconds[trace.lines.get(index, "")] += costs.device_seconds(call) * call.times
    line = max(seconds, key=lambda name: seconds[name], default="")
    return own / flops if flops else 0.0, line, sum(seconds.values())


def _host_syncs(trace: Trace, watcher: StepWatcher, device: Device) -> ProgramFinding | None:
    """Waits of the host, after which the device has to wait until the host has launched something again."""
    if len(watcher.spans) < 2:
        return None
    span, costs = watcher.spans[-1], PriorCosts.of(trace, device)
    step = trace.part(span.begin, span.end)
    lines = Counter[str]()
    for kind, index in step.events:
        call = trace.calls[trace.ops[index].call] if kind == OP else None
        if call is not None and call.syncs:
            lines[trace.lines.get(index, "")] += call.times
    if not lines:
        return None
    seconds = replay_clock(step, costs).seconds
    free = dataclasses.replace(step, calls=[dataclasses.replace(call, syncs=False) for call in step.calls])
    lost = seconds - replay_clock(free, costs).seconds
    if lost < SYNC_SHARE * seconds:
        return None
    line, count = lines.most_common(1)[0]
    text = (
        f"The host waits for the device {lines.total()} times a step (values that it reads, copies that block), "
        f"{count} of them at {line or 'no known line'}; the device then waits for the next launch: "
        f"{format_seconds(lost)} of {format_seconds(seconds)} a step. Keep such values on the device, read them every "
        "so many steps, copy with non_blocking=True from pinned memory."
    )
    return ProgramFinding(kind="host-sync", line=line, seconds=lost, text=text)


def _host_work(trace: Trace, watcher: StepWatcher, device: Device, step_seconds: float) -> ProgramFinding | None:
    """Batches that the program makes on the host between its kernels; what offloading does there is no fault."""
    if len(watcher.spans) < 2:
        return None
    span, costs = watcher.spans[-1], PriorCosts.of(trace, device)
    lines: dict[str, float] = defaultdict(float)
    for kind, index in trace.events[span.begin : span.end]:
        op = trace.ops[index] if kind == OP else None
        call = None if op is None or op.phase is not Phase.FORWARD else trace.calls[op.call]
        if call is not None and call.issuer == Issuer.HOST:
            lines[trace.lines.get(index, "")] += costs.host_seconds(call)
    total = sum(lines.values())
    if not lines or total < HOST_WORK_SHARE * step_seconds:
        return None
    line = max(lines, key=lambda name: lines[name])
    text = (
        f"The host works {format_seconds(total)} a step on its own tensors (random numbers, passes over large ones, "
        f"copies of memory that is not pinned), most of it at {line or 'no known line'}. Make them on the device, "
        "before the loop, or in a DataLoader's workers."
    )
    return ProgramFinding(kind="host-work", line=line, seconds=total, text=text)


def _undivided_accumulation(trace: Trace, watcher: StepWatcher) -> ProgramFinding | None:
    """Several backward passes from one line before an update, whose losses nothing divides by their number."""
    if len(watcher.spans) < 2 or not watcher.spans[-1].backward_lines:
        return None
    span = watcher.spans[-1]
    line, count = Counter(span.backward_lines).most_common(1)[0]
    if count < 2:
        return None
    for kind, index in trace.events[span.begin : span.end]:
        call = trace.calls[trace.ops[index].call] if kind == OP else None
        if call is None or not any(part in call.name for part in (".div", "_div", ".mul", "_mul")):
            continue
        factors = [value for value in call.arguments if isinstance(value, int | float)]
        is_mean = any(abs(factor - count) < 1e-6 or abs(factor * count - 1) < 1e-6 for factor in factors)
        is_scalar = "div" in call.name and bool(call.outputs) and all(spec.shape in ((), (1,)) for spec in call.outputs)
        if is_mean or is_scalar:
            return None
    text = (
        f"{count} backward passes add up before each update, and nothing divides by {count}: the gradient is that of a "
        f"sum. With a learning rate for the mean, write (loss / {count}).backward()."
    )
    return ProgramFinding(kind="accumulation-not-divided", line=line, text=text)


def _missing_sampler(trace: Trace, watcher: StepWatcher) -> ProgramFinding | None:
    """Data-parallel ranks that are all given the same rows."""
    same = [loader for span in watcher.spans for loader in span.fetched if loader.sees_all_rows]
    if not same:
        return None
    span = watcher.spans[-1]
    ranks = data_parallel_ranks(trace.part(span.begin, span.end))
    if ranks == 1:
        return None
    text = (
        f"{ranks} data-parallel ranks train on the same rows: give the DataLoader a DistributedSampler "
        "(and call its set_epoch), or prepare it with accelerate, unless its dataset is one rank's part already."
    )
    return ProgramFinding(kind="missing-sampler", line=same[-1].line, text=text)


def _waits_for_data(watcher: StepWatcher, step_seconds: float) -> ProgramFinding | None:
    """Batches that take longer to make than the device needs for them, as timed on this machine."""
    fetched = watcher.spans[-1].fetched if watcher.spans else ()
    if not fetched or not step_seconds:
        return None
    slowest = max(fetched, key=lambda loader: loader.batch_seconds)
    making = sum(loader.batch_seconds for loader in fetched)
    # Without workers the host makes a batch while it should launch kernels; with them it waits for what is not ready.
    wait = max(0.0, making - step_seconds) if slowest.worker_count else making
    if wait < max(WAIT_SHARE * step_seconds, LEAST_WAIT_SECONDS):
        return None
    whose = f"by {slowest.worker_count} workers" if slowest.worker_count else "without workers (num_workers=0)"
    text = (
        f"Making the batches of a step ({len(fetched)}) takes {format_seconds(making)} on this machine {whose}, and "
        f"the device needs {format_seconds(step_seconds)} for them: it waits about {format_seconds(wait)}, which is "
        "not in the forecast."
    )
    return ProgramFinding(kind="waits-for-data", line=slowest.line, seconds=wait, text=text)
