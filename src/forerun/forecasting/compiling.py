"""How long `torch.compile` takes until the first compiled step runs, where nothing was compiled before."""

from forerun.experience import DeviceCalibration
from forerun.hardware.catalogue import Device
from forerun.settings.schema import Settings
from forerun.trace import Trace

FIRST_COMPILE_SECONDS = 2.4
COMPILER_SECONDS, COMPILED_KERNEL_SECONDS = 12.5, 0.15
"""Capturing and compiling a training step on a CPU where a small function's first compilation takes
`FIRST_COMPILE_SECONDS`: four models of 94 to 272 fused kernels took 24.6 to 50.7 s, within 12 % of this line
(docs/log.md, 2026-11-21)."""
GPU_KERNEL_SECONDS = 0.035
"""Seconds of a kernel for a GPU; Triton compiles in several processes, equal ones once. By PyTorch's own dashboard of
2023 (pytorch/pytorch issue 93794, A100, mixed precision, training) Megatron-BERT's 24 blocks took 73 to 75 s, XGLM's 94
to 100 s; eager attention makes about 1,870 and 1,840 kernels of those: 0.032 to 0.047 s each beside `COMPILER_SECONDS`.
Other dates of the same dashboard differ by a fifth."""


def compiling_seconds(
    settings: Settings, trace: Trace, device: Device, calibration: DeviceCalibration | None = None
) -> float:
    """Seconds to compile a traced step, 0 where nothing is. Equal blocks that are compiled one by one count once.

    Compiled blocks stand for Megatron's fused layers where it runs the layout.
    """
    if settings.compile == "none" or settings.parallel.engine == "megatron":
        return 0.0
    once = (op.call for op in trace.ops if op.micro_step <= 0)
    fused = [call for call in once if trace.calls[call].name.startswith("fused.")]
    kernels = len(set(fused)) if settings.compile_unit != "model" else len(fused)
    return seconds_of_kernels(kernels, device, calibration)


def seconds_of_kernels(kernels: int, device: Device, calibration: DeviceCalibration | None = None) -> float:
    """Seconds to capture graphs and compile their kernels."""
    measured = None if calibration is None else calibration.compile_seconds
    pace = 1.0 if measured is None else measured / FIRST_COMPILE_SECONDS
    each = COMPILED_KERNEL_SECONDS if device.kind == "cpu" else GPU_KERNEL_SECONDS
    return pace * (COMPILER_SECONDS + kernels * each)
