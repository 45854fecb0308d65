"""Tokenisers of arithmetic prompts and outputs: the recipe's vocabulary, a model's tokeniser, or only a count."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from forerun.errors import UnknownModel
from forerun.models.pretrained_tokenizer import load_tokenizer
from forerun.recipes.arithmetic.data.text import LLAMA_ASSUMPTION, DigitTokeniser, llama_tokens


class Tokeniser(Protocol):
    """Interface of a tokeniser of prompts and outputs."""

    @property
    def pad_id(self) -> int:
        """Id that fills batches; never read."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids at which a reply ends."""
        ...

    def prompt(self, text: str) -> Sequence[int]:
        """Ids of a prompt."""
        ...

    def output(self, text: str) -> Sequence[int]:
        """Ids of an output, its end included."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Text of generated ids."""
        ...


@dataclass(frozen=True)
class DigitTokens:
    """The recipe's own vocabulary."""

    digits: DigitTokeniser = DigitTokeniser()
    pad_id: int = 0
    end_ids: tuple[int, ...] = (1,)

    def prompt(self, text: str) -> Sequence[int]:
        """Ids of a prompt."""
        return self.digits.encode(text)

    def output(self, text: str) -> Sequence[int]:
        """Ids of an output, its end included."""
        return [*self.digits.encode(text), *self.end_ids]

    def text(self, ids: Sequence[int]) -> str:
        """Text of generated ids."""
        return self.digits.decode(list(ids))


@dataclass(frozen=True)
class ModelTokens:
    """The tokeniser of a Hugging Face model."""

    tokenizer: Any

    @property
    def pad_id(self) -> int:
        """Its padding, or its end where it has none; padding is never read."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Its end of sequence."""
        return (self.tokenizer.eos_token_id,)

    def prompt(self, text: str) -> Sequence[int]:
        """Ids of a prompt."""
        return self.tokenizer(text)["input_ids"]

    def output(self, text: str) -> Sequence[int]:
        """Ids of an output, its end included."""
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def text(self, ids: Sequence[int]) -> str:
        """Text of generated ids."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


class CountedTokens(DigitTokens):
    """Only as many ids as LLaMA's tokeniser would give, for a forecast where it is not here."""

    def prompt(self, text: str) -> Sequence[int]:
        """Placeholder ids, as many as the text has, and one for the beginning."""
        return range(1 + llama_tokens(text))

    def output(self, text: str) -> Sequence[int]:
        """Placeholder ids, as many as the text has, and one for the end."""
        return range(1 + llama_tokens(text))


def tokeniser_for(
    name: str, tokens: Literal["digits", "model"], *, may_count: bool
) -> tuple[Tokeniser, tuple[str, ...]]:
    """The tokeniser, and what is assumed where it only counts, as it may for a forecast.

    Raises:
        UnknownModel: the tokeniser of the model is not here, and counting is not enough.
    """
    if tokens == "digits":
        return DigitTokens(), ()
    try:
        tokenizer = load_tokenizer(
            name, local_only=may_count, purpose=f"{name} is needed with recipe.tokens=model",
            instead="Give a local directory, go online, or set recipe.tokens to digits.",
        )  # fmt: skip
    except UnknownModel:
        if may_count:
            return CountedTokens(), (LLAMA_ASSUMPTION,)
        raise
    return ModelTokens(tokenizer), ()
