"""Products in float32 of a step whose weights have 16 bits, with what they cost."""

from forerun.clock.costs import Costs
from forerun.settings.schema import Settings
from forerun.trace import Trace
from forerun.units import format_percent, format_seconds

WIDE_SHARE = 0.2
"""Least part of the device's time in wide products that is worth a word."""


def wide_seconds(trace: Trace, costs: Costs) -> tuple[float, float]:
    """Seconds of a step's products in float32 alone, and their part of the device's time."""
    calls = [(call, times * costs.device_seconds(call)) for call, times in trace.warm_calls()]
    wide = sum(
        seconds for call, seconds in calls if call.flops and all(spec.dtype == "float32" for spec in call.inputs)
    )
    total = sum(seconds for _, seconds in calls)
    return wide, wide / total if total else 0.0


def adapter_warnings(settings: Settings, trace: Trace, costs: Costs) -> list[str]:
    """A sentence where adapters of fp32 beside weights in 16 bits are multiplied without tensor cores."""
    half = {"bf16-true": ("bf16", "bfloat16"), "fp16-true": ("fp16", "float16")}.get(settings.precision)
    if settings.adapter.kind != "lora" or settings.quantization != "none" or half is None or trace.tf32:
        return []
    wide, share = wide_seconds(trace, costs)
    if share < WIDE_SHARE:
        return []
    short, long = half
    return [
        f"adapter: peft makes adapters fp32 beside weights in 16 bits (autocast_adapter_dtype, since 0.12). Without "
        f"autocast their products are in float32: {format_seconds(wide)} a step without tensor cores, "
        f"{format_percent(share)} of the device's time. precision: {short}-mixed with model.dtype: {long} multiplies "
        f"in 16 bits, as the Trainer's {short}=True does; so does an older peft (versions: {{peft: 0.11}})."
    ]
