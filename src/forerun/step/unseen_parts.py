"""Parts of a language model that a step of tokens alone leaves idle: those for images and sound."""

from collections.abc import Sequence

from torch import nn

from forerun.step.quantization import parameter_count

LANGUAGE = ("language_model", "text_model")
"""transformers' names of the part that reads tokens, where there are others (5.17 and later; the second: Idefics and
the encoder of T5Gemma 2)."""
OF_TOKENS = ("causal-lm", "seq2seq-lm")
"""Workloads whose models may have such parts."""


def unseen_parameters(model: nn.Module, workload: str) -> int:
    """Parameters of a language model outside what reads and writes tokens; 0 where nothing else is there."""
    parts = _of_tokens(model) if workload in OF_TOKENS else []
    return parameter_count(model) - _count(parts) if parts else 0


def with_work(model: nn.Module, workload: str, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those of `parameters` that get a gradient from a step of tokens: no optimizer makes states for the others."""
    parts = _of_tokens(model) if workload in OF_TOKENS else []
    own = {id(parameter) for part in parts for parameter in part.parameters()}
    return [parameter for parameter in parameters if not parts or id(parameter) in own]


def _of_tokens(model: nn.Module) -> list[nn.Module]:
    """What reads tokens, the decoder behind it and the head; empty where the model has no other parts."""
    part = next((each for name, each in model.named_modules() if name.rpartition(".")[2] in LANGUAGE), None)
    if part is None:
        return []
    is_pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    inside = {id(each) for each in part.modules()}
    others = [(name.rpartition(".")[2], each) for name, each in model.named_modules() if id(each) not in inside]
    names = ("decoder", "lm_head") if is_pair else ("lm_head",)
    firsts = (next((each for own, each in others if own == name), None) for name in names)
    return [part, *(each for each in firsts if each is not None)]


def _count(parts: Sequence[nn.Module]) -> int:
    return parameter_count(nn.ModuleList(parts))
