"""Rewriting a text with a language model: words put in by a masked one, or the text translated there and back.

Both take the text and a random generator, and give the same for the same; one text at a time, since padding would let
its neighbours change a score's last bits. Neither is ever a silent no-op: a model that is not there is an error.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from forerun.errors import UnknownModel

CANDIDATES = 10
"""Most probable words from which one is drawn by its probability."""
MOST_TOKENS = 256
Rewrite = Callable[[str, float, np.random.Generator], str]


def contextual(name: str, protected: frozenset[str] = frozenset()) -> Rewrite:
    """Substitution of `strength` × words, one after the other, by what the masked model `name` expects in their place.

    Raises:
        UnknownModel: the model or its tokeniser cannot be loaded.
    """
    from transformers import AutoModelForMaskedLM

    model, tokeniser = _load(AutoModelForMaskedLM, name)
    if tokeniser.mask_token is None:
        raise UnknownModel(f"recipe.augmentation.masked_lm: {name} has no mask token. Name a masked language model.")

    def rewrite(text: str, strength: float, random: np.random.Generator) -> str:
        words = text.split()
        free = [n for n, word in enumerate(words) if word.isalpha() and word.lower() not in protected]
        count = min(len(free), max(1, int(strength * len(words))))
        for place in random.permutation(free)[:count]:
            words[place] = _likely(model, tokeniser, words, int(place), random)
        return " ".join(words)

    return rewrite


def back_translation(names: Sequence[str]) -> Rewrite:
    """Translation with the model `names[0]` and back with `names[1]`; the strength is the sampling temperature.

    Raises:
        UnknownModel: a model cannot be loaded.
    """
    from transformers import AutoModelForSeq2SeqLM

    pairs = [_load(AutoModelForSeq2SeqLM, name) for name in names]

    def rewrite(text: str, strength: float, random: np.random.Generator) -> str:
        for model, tokeniser in pairs:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(int(random.integers(2**31)))
                inputs = tokeniser([text], return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
                ids = model.generate(**inputs, do_sample=True, temperature=strength, max_new_tokens=MOST_TOKENS)
            text = tokeniser.batch_decode(ids, skip_special_tokens=True)[0]
        return text

    return rewrite


def _likely(model: Any, tokeniser: Any, words: Sequence[str], place: int, random: np.random.Generator) -> str:
    """One of the model's best whole words for a place, never the word that stands there."""
    masked = " ".join([*words[:place], tokeniser.mask_token, *words[place + 1 :]])
    inputs = tokeniser([masked], return_tensors="pt", truncation=True, max_length=MOST_TOKENS)
    where = (inputs["input_ids"][0] == tokeniser.mask_token_id).nonzero()
    if not len(where):  # the mask lies beyond MOST_TOKENS
        return words[place]
    with torch.no_grad():
        scores = model(**inputs).logits[0, int(where[0])].float().log_softmax(dim=0)
    candidates: list[tuple[str, float]] = []
    for token in scores.argsort(descending=True)[: 8 * CANDIDATES].tolist():  # most are word pieces or punctuation
        word = tokeniser.decode([token]).strip()
        if word.isalpha() and word.lower() != words[place].lower():
            candidates.append((word, float(scores[token].exp())))
        if len(candidates) == CANDIDATES:
            break
    if not candidates:
        return words[place]
    chances = np.asarray([chance for _, chance in candidates])
    return candidates[int(random.choice(len(candidates), p=chances / chances.sum()))][0]


def _load(factory: Any, name: str) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from forerun.models.catalogue import hub_id, hub_is_reachable

    source = hub_id(name)
    local = not hub_is_reachable()
    try:
        tokeniser = AutoTokenizer.from_pretrained(source, local_files_only=local, trust_remote_code=False)
        model = factory.from_pretrained(source, use_safetensors=True, local_files_only=local, trust_remote_code=False)
        return model.eval(), tokeniser
    except (OSError, ValueError) as error:
        raise UnknownModel(
            f"recipe.augmentation: {name} cannot be loaded: {str(error).splitlines()[0]} "
            f"Give a local directory with safetensors weights, or go online."
        ) from error
