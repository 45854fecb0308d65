"""How long `torch.compile` takes until the first compiled step runs, where nothing was compiled before."""

from forerun.experience import Calibration
from forerun.settings.schema import Settings
from forerun.trace import Trace

FIRST_COMPILE_SECONDS = 2.4
COMPILER_SECONDS, COMPILED_KERNEL_SECONDS = 12.5, 0.15
"""Capturing and compiling a training step on a CPU where a small function's first compilation takes
`FIRST_COMPILE_SECONDS`: four models of 94 to 272 fused kernels took 24.6 to 50.7 s, within 12 % of this line
(docs/log.md, 2026-11-21)."""


def compiling_seconds(settings: Settings, trace: Trace, calibration: Calibration | None) -> float:
    """Of a traced step, 0 where nothing is compiled. Of blocks that are alike and compiled one by one, one counts."""
    if settings.compile == "none":
        return 0.0
    once = (op.call for op in trace.ops if op.micro_step <= 0)
    fused = [call for call in once if trace.calls[call].name.startswith("fused.")]
    kernels = len(set(fused)) if settings.compile_unit == "blocks" else len(fused)
    measured = None if calibration is None else calibration.compile_seconds
    pace = 1.0 if measured is None else measured / FIRST_COMPILE_SECONDS
    return pace * (COMPILER_SECONDS + kernels * COMPILED_KERNEL_SECONDS)
