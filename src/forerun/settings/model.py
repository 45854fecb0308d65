"""Which architecture a run has, how its attention runs, and the number format of its weights."""

import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from forerun.settings.section import PlainSection

Precision = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "fp16-true", "bf16-true"]
Attention = Literal[
    "auto", "eager", "sdpa", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math", "flash_attention_2",
    "flash_attention_3", "flex_attention",
]  # fmt: skip
OLD_ATTENTION = {kernel: f"sdpa:{kernel}" for kernel in ("flash", "efficient", "math")}
"""Words of settings files of before 2026-11-22, and what they mean."""
WEIGHTS_OF: dict[str, str] = {
    "fp32": "float32", "tf32": "float32", "fp16-mixed": "float32", "bf16-mixed": "float32", "fp16-true": "float16",
    "bf16-true": "bfloat16",
}  # fmt: skip
"""Number format of the weights by precision."""
AUTOCASTS_OVER = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
"""Number format that weights may have in place of fp32, by precision."""


class ModelSettings(PlainSection):
    """Which architecture, and how its attention runs."""

    name: Annotated[str, Field(min_length=1)]
    """Catalogue name, Hugging Face id, or local directory."""
    config: dict[str, Any] = {}
    """Overrides of the architecture's Hugging Face configuration fields."""
    attention: Attention = "auto"
    """Attention: `auto` and `sdpa` take what PyTorch would choose on the device, `sdpa:…` one of its kernels, and the
    rest is what transformers calls so: `flash_attention_2` needs the package `flash_attn`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights, as transformers' `dtype` loads them; `auto` is what `precision` says: fp32 where it
    is mixed, 16 bits where it is true. With `precision: bf16-mixed` and `bfloat16` a step is what the Trainer's
    `bf16=True` makes of a model that was loaded in 16 bits: peft's adapters are fp32, products are in 16 bits."""
    kernels: Literal["none", "liger"] = "none"
    """Fused kernels in place of the model's own: `liger` (linkedin/Liger-Kernel) for normalisations, gated layers,
    rotary positions, and a loss that never has all logits."""
    freeze: list[str] = []
    """Parameters that are not trained, by name; `*` stands for any part of a name (`model.layers.0.*`)."""

    @field_validator("attention", mode="before")
    @classmethod
    def _new_words(cls, value: Any) -> Any:
        if isinstance(value, str) and value in OLD_ATTENTION:
            warnings.warn(
                f"model.attention: {value!r} is now written {OLD_ATTENTION[value]!r} (PyTorch's own kernel)"
                f"{'; the package flash_attn is flash_attention_2' if value == 'flash' else ''}.",
                FutureWarning,
                stacklevel=2,
            )
            return OLD_ATTENTION[value]
        return value


def dtype_conflicts(
    dtype: str, precision: str, adapter: str, saved: list[str], deepspeed_stage: int
) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy) of the weights' number format, beside an adapter of a kind and the
    modules that it trains whole."""
    is_other = dtype not in ("auto", WEIGHTS_OF[precision])
    takes = [WEIGHTS_OF[precision], *([AUTOCASTS_OVER[precision]] if precision in AUTOCASTS_OVER else [])]
    return [
        (
            is_other and dtype not in takes,
            f"model.dtype: weights of precision {precision} are {' or '.join(takes)}; found {dtype!r}. Set it to "
            f"{takes[-1]}, or precision to {'fp16-mixed' if dtype == 'float16' else 'bf16-mixed'}.",
        ),
        (
            is_other and (dtype, precision) == ("float16", "fp16-mixed") and (adapter != "lora" or bool(saved)),
            f"model.dtype: a loss scale refuses gradients in float16 (torch/amp/grad_scaler.py), so float16 is for "
            f"LoRA, whose adapters are fp32; found adapter.kind={adapter!r}, modules_to_save={saved!r}. Set "
            f"model.dtype to float32, or precision to fp16-true.",
        ),
        (
            is_other and deepspeed_stage > 0,
            f"model.dtype: DeepSpeed keeps the model in the format of precision; found {dtype!r}. Set it to auto.",
        ),
    ]
