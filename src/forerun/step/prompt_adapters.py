"""Adapters of peft other than LoRA: learnt prompts, prefixes, LLaMA-Adapter, and IA3's scales, for causal models.

- `prompt` (Lester et al. 2021): `virtual_tokens` embeddings before the input: every block sees so many more tokens.
- `prefix` (Li & Liang 2021): keys and values of `virtual_tokens` tokens for every block, handed to it as a cache.
- `llama-adapter` (Zhang et al. 2023): a prompt in the attention of the last `layers` blocks, behind a gate.
- `ia3` (Liu et al. 2022): one factor for each key, value and inner activation.

Not covered: other heads, packed batches, and training: checkpoints and exports of this version know LoRA.
"""

from typing import Any

from torch import nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings

PROMPT_TOKENS = "prompt_tokens"
"""Attribute of a model whose input is longer than its batch by so many tokens, which have no labels."""
KINDS = ("prompt", "prefix", "llama-adapter", "ia3")


def require_place(settings: Settings, workload: str) -> None:
    """Refuse these adapters where the step has no place for them; `workload` is the head's.

    Raises:
        NotSupported: naming the setting.
    """
    if settings.adapter.kind not in KINDS:
        return
    kind, checkpointing = settings.adapter.kind, settings.activation_checkpointing
    obstacles = [
        (workload != "causal-lm", f"is for causal language models here; found workload {workload!r}"),
        (kind == "prompt" and settings.workload == "preference", "moves the places of answers, whose logits preference "
         "reads; found workload='preference'"),
        (settings.batch.padding == "packed", "is not packed; found batch.padding='packed'"),
        (kind == "prefix" and checkpointing != "none", "hands blocks a cache, which peft refuses with checkpointing; "
         f"found activation_checkpointing={checkpointing!r}"),
        (settings.parallel.kind == "fsdp", "is not sharded here; found parallel.kind='fsdp'"),
    ]  # fmt: skip
    for applies, text in obstacles:
        if applies:
            raise NotSupported(f"adapter.kind: {kind} {text}. Set adapter.kind to lora, or change that.")


def add_prompt_adapter(model: nn.Module, settings: Settings) -> nn.Module:
    """The model inside peft's adapter of `adapter.kind`, whose base is frozen.

    Raises:
        InvalidSettings: the model has no such adapter in peft.
    """
    from peft import get_peft_model

    adapter = settings.adapter
    try:
        adapted = get_peft_model(model, _config(settings))  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSettings(
            f"adapter.kind: peft has no {adapter.kind} of this shape for {settings.model.name}: {error}. "
            f"Change adapter.layers or adapter.targets, or set adapter.kind to lora."
        ) from error
    if adapter.kind == "prompt":
        setattr(model, PROMPT_TOKENS, adapter.virtual_tokens)
    return adapted


def _config(settings: Settings) -> Any:
    from peft import AdaptionPromptConfig, IA3Config, PrefixTuningConfig, PromptTuningConfig

    adapter = settings.adapter
    task: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    match adapter.kind:
        case "prompt":
            return PromptTuningConfig(num_virtual_tokens=adapter.virtual_tokens, **task)
        case "prefix":
            return PrefixTuningConfig(num_virtual_tokens=adapter.virtual_tokens, **task)
        case "llama-adapter":
            return AdaptionPromptConfig(adapter_len=adapter.virtual_tokens, adapter_layers=adapter.layers, **task)
        case _:
            targets = {} if isinstance(adapter.targets, str) else {"target_modules": list(adapter.targets)}
            return IA3Config(**targets, **({"feedforward_modules": []} if targets else {}), **task)
