"""The step of the recipe `arithmetic`: next-token prediction on answers, from random weights or from trained ones."""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from forerun.errors import InvalidSettings
from forerun.models.build import config_of
from forerun.recipes.arithmetic.data.text import DigitTokeniser
from forerun.settings.schema import Settings
from forerun.step.heads import CausalLM

WEIGHTS = "model.safetensors"


class ArithmeticWorkload(CausalLM):
    """A causal language model; with the recipe's own vocabulary it starts from random weights."""

    name = "arithmetic"

    @property
    def head(self) -> str:
        """Name of the output head, which predicts the next token."""
        return "causal-lm"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The architecture; with `recipe.tokens: model` the weights of `model.name`, with `recipe.start_from` those.

        Raises:
            InvalidSettings: the recipe's vocabulary is larger than the model's, or the checkpoint is not this model's.
        """
        own = settings.recipe.get("tokens", "digits") == "digits"
        if own:
            required, size = len(DigitTokeniser().vocabulary), config_of(settings).vocab_size
            if size < required:
                raise InvalidSettings(
                    f"model.config.vocab_size: recipe.tokens=digits has {required} tokens; found {size} in "
                    f"{settings.model.name}. Set it to {required} or more."
                )
        has_weights = Path(settings.model.name).is_dir() or not own
        model = super().build_model(settings, pretrained=pretrained and has_weights)
        start = settings.recipe.get("start_from")
        if pretrained and start is not None:
            load_weights(model, Path(start))
        return model


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load the weights of a run's checkpoint into a model of the same architecture.

    Raises:
        InvalidSettings: there is no checkpoint, or it is of another architecture or of adapters.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise InvalidSettings(
            f"recipe.start_from: a folder with {WEIGHTS}, such as runs/RUN/checkpoints/step-00000625; found {folder}."
        )
    tensors = load_file(path)
    here = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    there = {name: tuple(value.shape) for name, value in tensors.items()}
    tied = {"lm_head.weight"} if {"lm_head.weight"} == set(here) - set(there) else set()
    if any(there.get(name) != shape for name, shape in here.items() if name not in tied) or set(there) - set(here):
        odd = sorted(n for n in {*here, *there} if n not in tied and here.get(n) != there.get(n))[0]
        raise InvalidSettings(
            f"recipe.start_from: {path} is of another model: {odd} is {there.get(odd)} there and {here.get(odd)} here. "
            f"Use the model settings of that run, without adapter."
        )
    model.load_state_dict(tensors, strict=not tied)
