"""Models whose forward pass is a loop over tokens in Python, and how much of one is traced.

Such a loop is unrolled: each token is some hundred operators of each block, which all are traced and replayed.
"""

from typing import Any

from forerun.errors import InvalidSettings
from forerun.settings.schema import Settings

TOKEN_BY_TOKEN = {"rwkv": ("transformers.models.rwkv.modeling_rwkv", "rwkv_linear_attention_cpu")}
"""Types that do, and the function with the loop (transformers 5.24). RWKV's has a CUDA kernel beside it, for which the
packages `kernels` and `ninja` must be installed, and which wants `time_first` in the type of its inputs: weights that
stay in 32 bits beside bf16 inputs (bf16-mixed) are none of its cases."""
MOST_TURNS = 2**15
"""Tokens × blocks × traced micro-steps, each some 300 events: about two minutes and 5 GiB on one core."""
MOST_IN_FULL = 64
"""Tokens where every turn is traced as it runs: compiled, or in the stages of a pipeline."""
TRACED_MICRO_STEPS = 2


def require_turns(settings: Settings, config: Any) -> None:
    """Check that the loop of a model with one is short enough to be traced, and that it generates nothing.

    Raises:
        InvalidSettings: it is not, or it does.
    """
    if config.model_type not in TOKEN_BY_TOKEN:
        return
    if settings.evaluation.new_tokens:
        raise InvalidSettings(
            f"evaluation.new_tokens: {settings.model.name} hands a state of its own from token to token, which is not "
            f"modelled; found {settings.evaluation.new_tokens}. Set it to 0."
        )
    length, is_in_full = settings.batch.sequence_length, settings.compile != "none" or settings.parallel.pipeline > 1
    each = config.num_hidden_layers * min(settings.batch.gradient_accumulation_steps, TRACED_MICRO_STEPS)
    most = MOST_IN_FULL if is_in_full else MOST_TURNS // max(1, each)
    if length > most:
        how = "compiled or in a pipeline" if is_in_full else f"{each} times in a step that is traced"
        raise InvalidSettings(
            f"batch.sequence_length: transformers computes {settings.model.name} token by token, {how}; found {length} "
            f"tokens, and a loop over {most} is traced at most. Set it to {most} or less"
            + (", or compile to none and parallel.pipeline to 1." if is_in_full else ".")
        )


def is_token_by_token(model: Any) -> bool:
    """Whether a model is one of them."""
    return getattr(getattr(model, "config", None), "model_type", "") in TOKEN_BY_TOKEN
