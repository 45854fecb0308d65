"""Warnings about what quantization leaves out, with its bytes."""

from forerun.settings.schema import Settings
from forerun.step.library_versions import kbit_preparation
from forerun.trace import Trace
from forerun.units import format_bytes

BYTES = {"int8": 1.0, "nf4": 0.5, "nf4-double": 0.5}
"""Bytes of a packed weight, without its scales."""


def quantization_warnings(settings: Settings, trace: Trace) -> list[str]:
    """Sentences for the reader of a forecast; none where everything large is packed."""
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
    if kbit_preparation(settings) == "none" and settings.precision.endswith("-true"):
        more = format_bytes(trace.narrow_bytes)
        warnings.append(
            f"peft's prepare_model_for_kbit_training is not part of this step. It would make {more} of weights fp32, "
            f"which takes {more} more, and the activations between layers with them. If your script calls it, set "
            f"kbit_preparation to true; if trl's SFTTrainer trains, give its version as versions.trl."
        )
    return warnings


def _width(settings: Settings) -> float:
    """Bytes of a weight that is not packed."""
    return 2.0 if settings.precision.endswith("-true") and kbit_preparation(settings) == "none" else 4.0
