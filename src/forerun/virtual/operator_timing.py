"""Time the distinct operator calls of a trace on the device at hand, one by one, on made-up tensors.

For a device that is here this replaces the datasheet: a step repeats few distinct calls many times, so timing each once
costs a fraction of a step. What it leaves out, Python and autograd between the operators, is timed on a small network
(`hardware/micro_benchmarks.py`). Values are drawn from (0, 1); indices are 0.

Not covered: calls that need more than `budget_bytes`, which are left to the caller's fallback.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.current_work import work
from forerun.hardware.micro_benchmarks import repeated_seconds
from forerun.trace import Call, Named, Phase, TensorSpec, Trace
from forerun.units import GIB, KIB, MIB
from forerun.virtual import library_kernels

VISITS, MORE_VISITS, MOST = 2, 3, 0.9
"""Every call is timed a few times in a row, and that again after all others: a shared machine's speed changes from one
second to the next. Those that make up most of the step are visited more often."""
CROWDED_VISITS, CROWDED_SECONDS = 8, 20.0
"""Visits where others use the processors too, and how long the further ones may take: two threads that wait for a taken
core are late in all calls of one visit, and not in all visits."""
OUTLIER = 4.0
LIST_BYTES = 256 * MIB
"""Calls over lists of tensors (optimizers) are timed over as many as this holds, and taken in proportion."""
PATTERN_BYTES = 4 * MIB
NEAR_BYTES = 256 * KIB
"""Where nothing is kept for a backward pass, tensors of a call that are smaller together were most likely made by the
calls just before it and are still in the nearest caches. A token of the small decoder of `code-lora` took 24 ms when
every call was timed on tensors that are far, 11 to 15 ms now, and takes 10 ms (docs/log.md, 2026-11-22)."""
FUSED, STAND_IN = "fused.", "forerun."


def time_calls(
    trace: Trace, device: torch.device, *, earlier_seconds: dict[Call, float] | None = None,
    budget_bytes: int = 2 * GIB, is_crowded: Callable[[], bool] = lambda: False, near_bytes: int = 0,
) -> dict[Call, float]:  # fmt: skip
    """Mean seconds of each distinct kernel call in the warm step, on `device`; calls that cannot run are left out.

    Calls in `earlier_seconds` are not timed again. `is_crowded` is asked when all was timed: where others were using
    the processors too, all calls are visited again and the quickest visit counts in place of the mean, so that the
    figure is that of the machine to itself. Calls on less than `near_bytes` find their tensors in the nearest caches,
    all others do not. The C library should hold what is freed (`hardware/host_memory.py`): fresh pages are no part of
    an operator's time.
    """
    seconds = dict(earlier_seconds or {})
    counts = Counter(op.call for op in trace.ops if op.phase is not Phase.PREPARE)
    numbers = [n for n in counts if _is_timed(trace.calls[n]) and trace.calls[n] not in seconds]
    if any(trace.calls[n].name.startswith(STAND_IN) for n in numbers):
        library_kernels.register()
    tensors = _Tensors(device)
    timings: dict[int, list[list[float]]] = {n: [] for n in numbers}

    def visit(visited: list[int], times: int) -> None:
        for _ in range(times):
            for n in visited:
                timings[n].append(_time_call(trace.calls[n], tensors, budget_bytes, near_bytes))

    with work(f"timing {len(numbers)} operators on this device") as say:
        visit(numbers, VISITS)
        shares = {n: counts[n] * _mean(values) for n, values in timings.items() if values[0]}
        visit(_largest(shares), MORE_VISITS)
        summarize = _mean
        if is_crowded():
            say(f"timing {len(numbers)} operators again, since others use the processors")
            summarize, until = _quickest, time.monotonic() + CROWDED_SECONDS
            for _ in range(CROWDED_VISITS - VISITS):
                visit(numbers if time.monotonic() < until else [], 1)
    return seconds | {trace.calls[n]: summarize(values) for n, values in timings.items() if values[0]}


def _mean(visits: list[list[float]]) -> float:
    """The mean, since steps pay for slow moments too, but no moment counts for more than `OUTLIER` ordinary ones."""
    seconds = [value for visit in visits for value in visit]
    most = OUTLIER * statistics.median(seconds)
    return statistics.fmean(min(value, most) for value in seconds)


def _quickest(visits: list[list[float]]) -> float:
    """Seconds of a call when no other process is in its way: two threads on a taken core wait for each other long."""
    return min(statistics.median(visit) for visit in visits if visit)


def _is_timed(call: Call) -> bool:
    return not call.is_view and not call.name.startswith(FUSED)  # a fused kernel exists only where it is compiled


def _largest(shares: dict[int, float]) -> list[int]:
    """Keys of the fewest calls that make up `MOST` of all seconds, the largest first."""
    largest: list[int] = []
    for n in sorted(shares, key=lambda n: -shares[n]):
        if sum(shares[m] for m in largest) >= MOST * sum(shares.values()):
            break
        largest.append(n)
    return largest


def _fitting(call: Call) -> tuple[tuple[Any, ...], float]:
    """Positional arguments whose lists of tensors hold at most `LIST_BYTES`, and their share of the call's bytes."""
    lists = [a for a in call.arguments if _is_tensor_list(a)]
    whole = sum(spec.bytes for specs in lists for spec in specs)
    if whole <= LIST_BYTES:
        return call.arguments, 1.0
    length, length_bytes = 0, 0
    while length == 0 or (length < len(lists[0]) and length_bytes < LIST_BYTES):
        length_bytes += sum(specs[length].bytes for specs in lists if length < len(specs))
        length += 1
    return tuple(a[:length] if _is_tensor_list(a) else a for a in call.arguments), length_bytes / whole


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, TensorSpec) for item in value)


def _time_call(call: Call, tensors: "_Tensors", budget_bytes: int, near_bytes: int) -> list[float]:
    arguments, share = _fitting(call)
    call_bytes = sum(spec.bytes for spec in (*call.inputs, *call.outputs)) * share
    if call_bytes > budget_bytes:
        return []
    operator = _operator(call.name)
    try:
        real = [tensors.real(a) for a in arguments]
        keywords = {name: tensors.real(value) for name, value in call.keywords}
        timings = repeated_seconds(lambda: operator(*real, **keywords), tensors.device, evict=call_bytes >= near_bytes)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return []  # values matter to this call, or it is not for this device: the caller falls back
    return [seconds / share for seconds in timings]


def _operator(name: str) -> Callable[..., Any]:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


class _Tensors:
    """Makes the tensors of calls: values repeat a random pattern, which is faster than drawing each."""

    def __init__(self, device: torch.device):
        self.device = device
        self._pattern = torch.empty(PATTERN_BYTES // 4, device=device).uniform_(0.01, 1)

    def real(self, value: Any) -> Any:
        """A plain argument as torch wants it."""
        if isinstance(value, TensorSpec):
            return self._tensor(value)
        if isinstance(value, Named):
            return torch.device(value.name) if value.kind == "device" else getattr(torch, value.name)
        if isinstance(value, tuple):
            return [self.real(item) for item in value]
        return value

    def _tensor(self, spec: TensorSpec) -> Tensor:
        dtype = getattr(torch, spec.dtype)
        if 0 in spec.stride:
            return torch.zeros((), dtype=dtype, device=self.device).expand(spec.shape)
        tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=self.device)
        if not dtype.is_floating_point:
            return tensor.zero_()
        flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,))
        for part in flat.split(self._pattern.numel()):
            part.copy_(self._pattern[: part.numel()])
        return tensor
