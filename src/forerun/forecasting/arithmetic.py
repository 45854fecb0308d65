"""In which number format the arithmetic of a step is done on a card."""

from collections import Counter

from forerun.clock.convolutions import CONVOLUTIONS
from forerun.clock.costs import factors_dtype
from forerun.hardware.catalogue import Device
from forerun.trace import OP, Call, Trace


def format_of(call: Call, trace: Trace, device: Device) -> str:
    """Format that a call multiplies in: TF32 for float32 where its switch is on, which is one for convolutions alone.

    cuDNN's is on unless a program turns it off (`torch.backends.cudnn.allow_tf32`); products of matrices have to ask.
    """
    dtype = factors_dtype(call)
    dtype = dtype if "float" in dtype or "complex" in dtype else "float32"
    return device.product_dtype(dtype, tf32=trace.tf32_convolutions if is_convolution(call) else trace.tf32)


def is_convolution(call: Call) -> bool:
    """Whether cuDNN's switch holds for it."""
    return call.name.split(".")[1] in CONVOLUTIONS


def main_format(step: Trace, device: Device) -> str:
    """Format of most of a step's arithmetic; float8 counts as bfloat16, as mfu is told of it."""
    flops = Counter[str]()
    for kind, index in step.events:
        call = step.calls[step.ops[index].call] if kind == OP else None
        if call is not None and call.flops:
            dtype = format_of(call, step, device)
            flops["bfloat16" if dtype.startswith("float8") else dtype] += call.flops * call.times
    return max(flops, key=lambda dtype: flops[dtype]) if flops else device.product_dtype("float32", tf32=step.tf32)
