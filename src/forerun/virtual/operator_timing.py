"""Time the distinct operator calls of a trace on the device at hand, one by one, on made-up tensors.

For a device that is here this replaces the datasheet: a step repeats few distinct calls many times, so timing each once
costs a fraction of a step. What it leaves out, Python and autograd between the operators, is timed on a small network
(`step_overhead_seconds`). Values are drawn from (0, 1); indices are 0.

Not covered: calls that need more than `budget_bytes`, which are left to the caller's fallback.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from forerun.trace import Call, Named, Phase, TensorSpec, Trace
from forerun.units import GIB, MIB

REPEATS = 5
CACHE_BYTES = 16 * MIB
"""Touched between two runs of a call, so that it does not find its inputs in the caches nearest to the cores: in a step
other operators have run since they were made."""
CALL_SECONDS = 0.25
"""Stop repeating a call after this long."""
OVERHEAD_WIDTH, OVERHEAD_LAYERS, OVERHEAD_STEPS = 16, 24, 8
FUSED = "fused."


def time_calls(
    trace: Trace, device: torch.device, *, known: dict[Call, float] | None = None, budget_bytes: int = GIB
) -> dict[Call, float]:
    """Median seconds of each distinct kernel call in the warm step, on `device`; calls that cannot run are left out."""
    seconds = dict(known or {})
    used = Counter(op.call for op in trace.ops if op.phase is not Phase.PREPARE)
    for index in used:
        call = trace.calls[index]
        if call.is_view or call in seconds or call.name.startswith(FUSED):
            continue  # a fused kernel exists only where it is compiled: bytes tell its time
        if sum(spec.bytes for spec in (*call.inputs, *call.outputs)) > budget_bytes:
            continue
        measured = _time_call(call, device)
        if measured is not None:
            seconds[call] = measured
    return seconds


def _time_call(call: Call, device: torch.device) -> float | None:
    operator = _operator(call.name)
    arguments = [_real(a, device) for a in call.arguments]
    keywords = {name: _real(value, device) for name, value in call.keywords}

    def run() -> None:
        operator(*arguments, **keywords)

    try:
        return _median_seconds(run, device, evict=True)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None  # values matter to this call, or it is not for this device: the caller falls back


def _median_seconds(run: Callable[[], object], device: torch.device, *, evict: bool = False) -> float:
    scratch = torch.zeros(CACHE_BYTES // 4, device=device) if evict else None
    with torch.no_grad():
        run()
        taken: list[float] = []
        while len(taken) < REPEATS and sum(taken) < CALL_SECONDS:
            if scratch is not None:
                scratch.add_(1)
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _operator(name: str) -> Callable[..., Any]:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _real(value: Any, device: torch.device) -> Any:
    """A plain argument as torch wants it."""
    if isinstance(value, TensorSpec):
        return _tensor(value, device)
    if isinstance(value, Named):
        return torch.device(value.name) if value.kind == "device" else getattr(torch, value.name)
    if isinstance(value, tuple):
        return [_real(item, device) for item in value]
    return value


def _tensor(spec: TensorSpec, device: torch.device) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    tensor = torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device=device)
    if 0 in spec.stride:
        return torch.zeros((), dtype=dtype, device=device).expand(spec.shape)
    return tensor.uniform_(0.01, 1) if dtype.is_floating_point else tensor.zero_()


def step_overhead_seconds(device: torch.device) -> float:
    """Seconds per operator that a training step spends outside its operators: Python modules and autograd.

    Median step of a narrow stack of linear layers, less its operators timed alone, over its operators.
    """
    layers = [nn.Sequential(nn.Linear(OVERHEAD_WIDTH, OVERHEAD_WIDTH), nn.GELU()) for _ in range(OVERHEAD_LAYERS)]
    model = nn.Sequential(*layers).to(device)
    inputs = torch.rand(4, OVERHEAD_WIDTH, device=device)

    def step() -> None:
        model(inputs).sum().backward()
        model.zero_grad(set_to_none=True)

    def bare() -> None:
        weight = torch.rand(OVERHEAD_WIDTH, OVERHEAD_WIDTH, device=device)
        bias = torch.rand(OVERHEAD_WIDTH, device=device)
        for _ in range(OVERHEAD_LAYERS):
            torch.ops.aten.addmm.default(bias, inputs, weight)
            torch.ops.aten.gelu.default(inputs)
            torch.ops.aten.gelu_backward.default(inputs, inputs)
            torch.ops.aten.mm.default(inputs, weight)
            torch.ops.aten.mm.default(weight, weight)
            torch.ops.aten.sum.dim_IntList(inputs, [0], True)

    with torch.enable_grad():
        whole = _repeat(step, device)
    with torch.no_grad():
        operators = _repeat(bare, device)
    return max(0.0, whole - operators) / (6 * OVERHEAD_LAYERS)


def _repeat(run: Callable[[], None], device: torch.device) -> float:
    run()
    taken = []
    for _ in range(OVERHEAD_STEPS):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def matmul_peak(device: torch.device, dtype: torch.dtype, side: int = 1024) -> float:
    """FLOP/s of a square matrix product on `device`: what stands for a peak where no datasheet gives one."""
    left = torch.rand(side, side, device=device).to(dtype)
    seconds = _median_seconds(lambda: left @ left, device)
    return 2 * side**3 / seconds
