"""The data of the recipe `okadfa`: text or a language of known entropy, as windows of the context's length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.data.language_text import KNOWN_TOKENS, LanguageText, Split, is_hub_source, open_text
from forerun.data.language_tokens import GPT2_VOCABULARY, LanguageTokens, learned
from forerun.data.language_windows import WindowData, held_out_batches, plan_of_windows, windows
from forerun.data.plan import BatchPlan
from forerun.errors import BadData, UnknownModel
from forerun.recipes.okadfa.data.synthetic_language import (
    HELD_OUT_WINDOWS,
    SYMBOLS,
    TRAIN_WINDOWS,
    SyntheticLanguage,
    synthetic,
)
from forerun.recipes.okadfa.workload import OkadfaOptions, config_of
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings
from forerun.step.workload import Batch

SCORED_TOKENS = 4_096
"""Tokens of a scoring batch: at most a training micro-batch's, so that scoring needs no more memory."""


@dataclass(frozen=True)
class OkadfaData:
    """Windows to train on, and held-out tokens to judge by."""

    settings: Settings
    name: str
    tokenizer: str
    """Name of the tokenizer, printed with every score per token."""
    train: NDArray[np.int32]
    """Rows of T + 1 tokens."""
    held_out: dict[Split, NDArray[np.int32]]
    """Streams of tokens, or rows of a synthetic language."""
    words: int | None = None
    """Words of the test text."""
    bytes: int | None = None
    """Bytes of the test text."""
    language: SyntheticLanguage | None = None
    tokens: LanguageTokens | None = None
    """The tokenizer; None for a synthetic language and where nothing was read."""

    @property
    def vocabulary(self) -> int:
        """Ids that the model knows."""
        return symbols(self.settings) or config_of(self.settings).vocabulary_size

    @property
    def training(self) -> WindowData:
        """The training windows as the loop wants them."""
        return WindowData(self.settings, self.train)

    def batches(self, split: Split, limit: int | None = None) -> Iterator[Batch]:
        """Scoring batches of a split, or of its first `limit` windows."""
        length = self.settings.batch.sequence_length
        size = max(1, min(self.settings.batch.micro_batch_size, SCORED_TOKENS // length))
        for number, batch in enumerate(held_out_batches(self.held_out[split], length, size)):
            if limit is not None and number * size >= limit:
                return
            yield batch

    def count(self, split: Split) -> int:
        """Windows of a split."""
        rows = self.held_out[split]
        return len(rows) if rows.ndim == 2 else -(-(len(rows) - 1) // self.settings.batch.sequence_length)


def open_data(settings: Settings) -> OkadfaData:
    """Load, tokenise and cut the text, or draw the synthetic language.

    Raises:
        InvalidSettings, BadData, MissingExtra: the source cannot be read.
        UnknownModel: `recipe.tokenizer` is gpt2 and it is not on this machine.
    """
    options, length = recipe_options(settings, OkadfaOptions), settings.batch.sequence_length
    if options.corpus != "text":
        language = synthetic(options.corpus, length, settings.seed, settings.data.examples)
        held_out: dict[Split, NDArray[np.int32]] = {"val": language.val, "test": language.test}
        return OkadfaData(
            settings, options.corpus, f"symbols ({language.symbols})", language.train, held_out, language=language
        )
    validation, test = (
        part if isinstance(part, str) else None for part in (settings.data.validation, settings.data.test)
    )
    text = open_text(settings.data.source, validation, test)
    tokens = _tokenizer(settings, options, text)
    rows = windows(tokens.encode(text.documents["train"]), length)[: settings.data.examples]
    if not len(rows):
        raise BadData(f"data.source: {text.name} has less than one window of {length} tokens to train on.")
    streams: dict[Split, NDArray[np.int32]] = {
        "val": tokens.encode(text.documents["val"]), "test": tokens.encode(text.documents["test"])
    }  # fmt: skip
    return OkadfaData(
        settings, text.name, tokens.name, rows, streams, text.words("test"), text.bytes("test"), tokens=tokens
    )


def _tokenizer(settings: Settings, options: OkadfaOptions, text: LanguageText) -> LanguageTokens:
    vocabulary = config_of(settings).vocabulary_size
    if options.tokenizer == "gpt2" or (options.tokenizer == "auto" and vocabulary == GPT2_VOCABULARY):
        tokens = gpt2()
        if tokens is not None and vocabulary >= GPT2_VOCABULARY:
            return tokens
        if options.tokenizer == "gpt2":
            raise UnknownModel(
                f"recipe.tokenizer: gpt2 needs its files from the hub and model.config.vocabulary_size of at least "
                f"{GPT2_VOCABULARY:,}; found {vocabulary:,} and {'the files' if tokens else 'no files'}. "
                f"Set it to learned."
            )
    return learned(text.documents["train"], vocabulary)


def gpt2() -> LanguageTokens | None:
    """GPT-2's tokenizer from the hub's cache, or from the hub where it can be reached; None where it is not there."""
    from transformers import AutoTokenizer

    from forerun.models.catalogue import hub_is_reachable

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            "openai-community/gpt2", local_files_only=not hub_is_reachable(), trust_remote_code=False
        )
    except (OSError, ValueError):
        return None
    return LanguageTokens(tokenizer.backend_tokenizer, f"GPT-2 byte pairs ({GPT2_VOCABULARY:,})")


def unread_data(settings: Settings) -> tuple[OkadfaData, BatchPlan] | None:
    """Data of the right sizes without content, for a forecast; None where the sizes are not known without reading."""
    plan = _plan_without_data(settings)
    if plan is None:
        return None
    # broadcast_to repeats one row without memory of its own: millions of windows cost nothing.
    row = np.zeros((1, settings.batch.sequence_length + 1), dtype=np.int32)
    train = np.broadcast_to(row, (plan.samples, row.shape[1]))
    held_out = np.broadcast_to(row, (HELD_OUT_WINDOWS, row.shape[1]))
    return OkadfaData(settings, "not read", "not read", train, {"val": held_out, "test": held_out}), plan


def symbols(settings: Settings) -> int | None:
    """Number of symbols of a synthetic language; None for text, where the shape's vocabulary counts."""
    corpus = recipe_options(settings, OkadfaOptions).corpus
    return None if corpus == "text" else SYMBOLS[corpus]


def _plan_without_data(settings: Settings) -> BatchPlan | None:
    options, length = recipe_options(settings, OkadfaOptions), settings.batch.sequence_length
    if options.corpus != "text":
        return plan_of_windows(settings, settings.data.examples or TRAIN_WINDOWS)
    source = settings.data.source
    if source is not None and is_hub_source(source):
        tokens = KNOWN_TOKENS.get(source.partition(":")[2])
        if tokens is not None:
            assumption = f"{source} has {tokens:,} GPT-2 tokens to train on; it was not read."
            count = min(tokens // length, settings.data.examples or tokens)
            return plan_of_windows(settings, count, (assumption,))
    if settings.data.examples is not None:
        return plan_of_windows(settings, settings.data.examples)
    return None
