"""Warnings about what quantization leaves out, with its bytes and seconds."""

from forerun.clock.costs import Costs
from forerun.forecasting.wide_products import WIDE_SHARE, wide_seconds
from forerun.settings.schema import Settings
from forerun.step.library_versions import kbit_preparation
from forerun.trace import Trace
from forerun.units import format_bytes, format_percent, format_seconds

BYTES = {"int8": 1.0, "nf4": 0.5, "nf4-double": 0.5}
"""Bytes of a packed weight, without its scales."""
NARROW_BYTES = 2
"""Of a weight in 16 bits."""
NEXT_TO_ALL = 0.9
"""Share of the frozen weights that are left as they are, from which on next to nothing is packed."""


def quantization_warnings(settings: Settings, trace: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast; none where everything large is packed and multiplied in few bits."""
    if settings.quantization == "none":
        return []
    warnings = []
    experts = trace.unpacked_expert_bytes
    if experts:
        packed = format_bytes(experts / _width(settings) * BYTES[settings.quantization])
        warnings.append(
            f"quantization: {format_bytes(experts)} of experts are not packed. transformers 5 holds a block's as "
            f"one tensor, and {settings.quantization} packs linear layers only; packed they would take {packed}."
        )
    elif trace.narrow_bytes > NEXT_TO_ALL * NARROW_BYTES * (trace.total_parameters - trace.trainable_parameters):
        warnings.append(
            f"quantization: {settings.quantization} leaves {format_bytes(trace.narrow_bytes)} of weights as they are, "
            f"next to all of the model: from 5.5 on transformers packs layers of PyTorch's own class nn.Linear alone, "
            f"and this model's are of another. versions.transformers: 5.4 forecasts it packed."
        )
    if kbit_preparation(settings) == "none" and settings.has_narrow_weights:
        more = format_bytes(trace.narrow_bytes)
        warnings.append(
            f"peft's prepare_model_for_kbit_training is not part of this step. It would make {more} of weights fp32, "
            f"which takes {more} more, and the activations between layers with them. If your script calls it, set "
            f"kbit_preparation to true; if trl's SFTTrainer trains, give its version as versions.trl."
        )
    if settings.quantization == "int8" and not trace.tf32:
        warnings += _wide_products(trace, costs)
    return warnings


def _wide_products(trace: Trace, costs: Costs) -> list[str]:
    """What float32 costs where bitsandbytes multiplies gradients in the dtype of the layer's input."""
    wide, share = wide_seconds(trace, costs)
    if share < WIDE_SHARE:
        return []
    return [
        f"int8: bitsandbytes multiplies gradients in the dtype of a layer's input, which is float32 here: "
        f"{format_seconds(wide)} a step in float32 without tensor cores, {format_percent(share)} of the "
        f"device's time. precision bf16-true keeps inputs in 16 bits where nothing was prepared for k-bit training; "
        f"nf4 multiplies in 16 bits."
    ]


def _width(settings: Settings) -> float:
    """Bytes of a weight that is not packed."""
    return 2.0 if settings.has_narrow_weights and kbit_preparation(settings) == "none" else 4.0
