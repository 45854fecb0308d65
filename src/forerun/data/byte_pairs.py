"""Byte-level byte-pair vocabularies learned on the spot (Sennrich et al. 2016); every byte has an id."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ANY_SCRIPT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words of any script, vowel signs and accents included, and single digits: the rule of Qwen3.5's tokenizer, `qwen35`
of llama.cpp. GPT-2's has no signs: Hindi takes 65 % more tokens with it, Thai 51 %, German 5 % (docs/log.md)."""


def learn_byte_pairs(
    texts: Iterable[str],
    vocabulary_size: int,
    special_tokens: list[str],
    *,
    pieces: str | None = None,
    minimum_count: int = 0,
) -> Tokenizer:
    """A tokenizer whose merges come from `texts`; special tokens have the first ids.

    Merges stay within what the regular expression `pieces` matches, without one within GPT-2's words; a pair that
    occurs less than `minimum_count` times is not merged.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = by_words(pieces)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=minimum_count,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def by_words(pieces: str | None) -> pre_tokenizers.PreTokenizer:
    """What cuts a text into the bytes of what `pieces` matches, without one of GPT-2's words."""
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pieces is None)
    return (
        by_bytes
        if pieces is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pieces), "isolated"), by_bytes])
    )
