"""The step of the recipe `arithmetic`: next-token prediction on answers, from random weights or a pretrained model."""

from pathlib import Path

from torch import nn

from forerun.data.arithmetic_text import DigitTokeniser
from forerun.errors import InvalidSettings
from forerun.models.build import config_of
from forerun.settings.schema import Settings
from forerun.step.heads import CausalLM


class ArithmeticWorkload(CausalLM):
    """A causal language model; with the recipe's own vocabulary it starts from random weights."""

    name = "arithmetic"

    @property
    def head(self) -> str:
        """Predicts the next token."""
        return "causal-lm"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The architecture; weights of a directory, or with `recipe.tokens: model` those of `model.name`.

        Raises:
            InvalidSettings: the recipe's vocabulary is larger than the model's.
        """
        own = settings.recipe.get("tokens", "digits") == "digits"
        if own:
            wanted, found = len(DigitTokeniser().vocabulary), config_of(settings).vocab_size
            if found < wanted:
                raise InvalidSettings(
                    f"model.config.vocab_size: recipe.tokens=digits has {wanted} tokens; found {found} in "
                    f"{settings.model.name}. Set it to {wanted} or more."
                )
        has_weights = Path(settings.model.name).is_dir() or not own
        return super().build_model(settings, pretrained=pretrained and has_weights)
