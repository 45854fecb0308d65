"""Activation checkpointing: which results of a transformer block the backward pass computes again."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from forerun.errors import NotSupported
from forerun.settings.schema import Settings

KEPT_PRODUCTS = ("mm", "addmm", "_int_mm", "_grouped_mm")
"""Products of layers; selective checkpointing keeps the results of the first, third, fifth … of a block."""
KEPT_OPERATORS = ("bmm", "baddbmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                  "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
                  "_flash_attention_forward")  # fmt: skip
"""Operators of attention, whose results it keeps all. The rule is that of torchtitan's "selective op"
(models/llama3/infra/parallelize.py, 0.2.2: `meta[mm_count_key] % 2 == 0`) and of torchtune's."""


def recomputation(settings: Settings) -> dict[str, Any]:
    """Keyword arguments of `torch.utils.checkpoint.checkpoint` for these settings.

    The int8 layers of bitsandbytes (0.50) hold their input where only the reentrant kind of checkpointing forgets it.

    Raises:
        NotSupported: selective checkpointing of int8 layers, for that reason.
    """
    if settings.activation_checkpointing == "blocks":
        return {"use_reentrant": settings.quantization == "int8"}
    if settings.quantization == "int8":
        raise NotSupported(
            "activation_checkpointing: int8 layers keep their inputs under selective checkpointing; "
            "found 'selective'. Set it to blocks, or quantization to nf4."
        )
    products, others = (
        {getattr(torch.ops.aten, name).default for name in names} for names in (KEPT_PRODUCTS, KEPT_OPERATORS)
    )

    def contexts() -> Any:
        counts = {False: 0, True: 0}  # the forward pass, and its repetition, each from the block's first product on

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            is_kept = operator in others
            if operator in products:
                counts[context.is_recompute] += 1
                is_kept = counts[context.is_recompute] % 2 == 1
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return {"use_reentrant": False, "context_fn": contexts}


def checkpoint_blocks(model: nn.Module, kwargs: dict[str, Any]) -> None:
    """Recompute every transformer block in the backward pass, as `kwargs` say."""
    if hasattr(model, "activation_checkpointing_enable"):  # the newer name in transformers
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs)  # type: ignore[operator]
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)  # type: ignore[operator]
    else:
        raise NotSupported(
            f"activation_checkpointing: {type(model).__name__} has no blocks to recompute. Set it to none."
        )
    # the reentrant kind (torch/utils/checkpoint.py) gives gradients only where an input of the block requires one
    if any(not p.requires_grad for p in model.parameters()):
        model.enable_input_require_grads()  # type: ignore[operator]
