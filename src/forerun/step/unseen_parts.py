"""Parts of a language model that a step of tokens alone leaves idle: those for images and sound."""

from torch import nn

from forerun.step.quantization import parameter_count

LANGUAGE = ("language_model", "text_model")
"""transformers' names of the part that reads tokens, where there are others (5.17 and later; the second: Idefics)."""


def unseen_parameters(model: nn.Module) -> int:
    """Parameters of a causal language model outside what reads tokens and its head; 0 where nothing else is there."""
    part = next((each for name, each in model.named_modules() if name.rpartition(".")[2] in LANGUAGE), None)
    if part is None:
        return 0
    of_part = {id(parameter) for parameter in part.parameters()}
    heads = [each for name, each in model.named_modules() if name.rpartition(".")[2] == "lm_head"]
    own_heads = [head for head in heads if not of_part & {id(parameter) for parameter in head.parameters()}]
    return parameter_count(model) - parameter_count(part) - sum(parameter_count(head) for head in own_heads[:1])
