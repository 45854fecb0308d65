"""Costs of operators on the machine at hand, timed with PyTorch's own operators."""

import os
from collections.abc import Sequence

import torch

from forerun.clock.costs import Costs
from forerun.clock.measured import MeasuredCosts
from forerun.experience import DeviceCalibration
from forerun.hardware.host_memory import freed_memory_held
from forerun.hardware.micro_benchmarks import CPU_COPIES, copy_speed, matmul_peak, step_overhead_seconds
from forerun.hardware.processor_time import ProcessorTime
from forerun.trace import Call, Trace
from forerun.virtual.operator_timing import NEAR_BYTES, time_calls

CROWDED = 0.1
"""Share of the processors that other work may take from our threads while operators are timed."""


def host_costs(
    traces: Sequence[Trace],
    calibration: DeviceCalibration | None,
    timed_calls: dict[Call, float] | None,
    evaluated: Sequence[Trace],
) -> Costs:
    """Every operator of `traces` timed here; those of `evaluated` by others of nearly their size.

    Calls are looked up in, and added to, `timed_calls`; a calibration replaces what belongs to no operator.
    """
    here, processors = torch.device("cpu"), ProcessorTime()
    # timed as the step runs: the training loop keeps freed memory too, and fresh pages would be slower
    with freed_memory_held():
        seconds: dict[Call, float] = dict(timed_calls or {})
        for trace, near in [*((trace, 0) for trace in traces), *((trace, NEAR_BYTES) for trace in evaluated)]:
            seconds = time_calls(
                trace, here, earlier_seconds=seconds, is_crowded=lambda: crowd(processors) > 0, near_bytes=near
            )  # fmt: skip
        share = crowd(processors)
        beside = f" beside other work that took {share:.0%} of the processors" if share else ""
        if timed_calls is not None:
            timed_calls.update(seconds)
        if calibration is None:
            return MeasuredCosts(
                description=f"operators timed on this device{beside}",
                seconds=seconds,
                overhead_seconds=step_overhead_seconds(here),
                copy_bytes_per_second={size: copy_speed(here, size) for size in CPU_COPIES},
                flops_per_second=matmul_peak(here, torch.float32),
                is_host=True,
            )
    return MeasuredCosts(
        seconds=seconds,
        overhead_seconds=calibration.operator_host_seconds,
        copy_bytes_per_second=calibration.copy_bytes_per_second,
        flops_per_second=calibration.peak_flops_per_second("float32") or matmul_peak(here, torch.float32),
        is_host=True,
        random_seconds=calibration.compiled_random_seconds or 0.0,
        description=f"operators timed on this device{beside}, which is calibrated",
        evidence="calibrated",
    )


def crowd(processors: ProcessorTime) -> float:
    """Share of the processors that other processes used since then, where too few were left for our threads; else 0."""
    others, _ = processors.shares()
    idle = 1 - torch.get_num_threads() / (os.cpu_count() or 1)
    return others if others is not None and others > max(0.0, idle) + CROWDED else 0.0


def measured_peak(dtype: str) -> float:
    """FLOP/s that matrix products of a dtype (torch's name) reach here."""
    return matmul_peak(torch.device("cpu"), getattr(torch, dtype))
