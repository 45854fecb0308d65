"""A quantised model before training: number formats of what is not packed, as peft and trl's SFTTrainer make them."""

from typing import Any

import torch
from torch import nn

from forerun.settings.schema import Settings
from forerun.step.library_versions import (
    NARROW_TUNERS_BEFORE,
    has_narrow_adapters,
    kbit_preparation,
    number_of,
)
from forerun.step.precision import policy_of
from forerun.step.quantization import QuantizedLinear

EMBEDDINGS = ("lm_head", "embed_tokens", "wte", "wpe")
"""Names that trl looks for (0.23, `peft_module_casting_to_bf16`)."""
MAGNITUDE = "lora_magnitude_vector"
"""DoRA's lengths stay fp32 in trl 1.16."""


def prepare_for_kbit_training(model: nn.Module, settings: Settings) -> None:
    """Cast what is not packed, before adapters are added; recomputation is a setting of its own."""
    kind = kbit_preparation(settings)
    if kind in ("none", "narrow-adapters"):
        return
    from peft import prepare_model_for_kbit_training

    packed = [(layer, layer.weight.dtype) for layer in model.modules() if isinstance(layer, QuantizedLinear)]
    prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    for layer, dtype in packed:  # peft/utils/other.py (0.21) leaves bitsandbytes' own class of weights alone
        layer.weight.data = layer.weight.data.to(dtype)
    # transformers/integrations/flash_attention.py, get_target_dtype (5.23): what attention of fp32 states computes in
    model.config._is_quantized, model.config.dtype = True, policy_of(settings).compute_dtype  # type: ignore[union-attr]
    if kind == "sft-trainer":  # norms stay fp32
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.dtype == torch.float32 and _is_embedding(name):
                module.to(torch.bfloat16)


def narrow_adapters(model: nn.Module, settings: Settings) -> None:
    """Give adapters 16 bits, where the stated peft or trl does, or DeepSpeed's engine, which casts the whole model."""
    if settings.adapter.kind != "lora":
        return
    if settings.parallel.deepspeed_stage:  # 0.19.8, runtime/engine.py, `_cast_module_mixed_precision`
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(policy_of(settings).parameter_dtype)
        return
    if has_narrow_adapters(settings):
        _as_their_weights(model)
    kind = kbit_preparation(settings)
    is_old = kind == "sft-trainer" and number_of(settings.versions["trl"]) < NARROW_TUNERS_BEFORE
    if kind == "narrow-adapters" or is_old:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and MAGNITUDE not in name:
                parameter.data = parameter.data.to(torch.bfloat16)


def _as_their_weights(model: nn.Module) -> None:
    """Give adapters the dtype of the weights that they stand beside; packed ones are no floats and change nothing."""
    for module in model.modules():
        base: Any = getattr(module, "base_layer", None)
        if isinstance(base, nn.Module) and base.weight.dtype in (torch.float16, torch.bfloat16):
            for name, child in module.named_children():
                if name != "base_layer":
                    child.to(base.weight.dtype)


def _is_embedding(name: str) -> bool:
    return any(part in name for part in EMBEDDINGS) and "norm" not in name
