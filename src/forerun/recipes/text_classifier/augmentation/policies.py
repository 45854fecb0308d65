"""Augmentation as policies: a method, a strength, and the share of samples that get it; at most one a sample.

Which policy a sample gets, and what it does, is a pure function of seed, epoch and position: with any number of
workers, and in any order, the same. Methods that change text run before tokenising; `mixup`, `cutoff`, `r-drop`, `fgm`
and `pgd` leave the text alone and tell the training step what to do with the sample. `Augmenter.cost` is measured.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from forerun.errors import InvalidSettings, NotSupported
from forerun.recipes.text_classifier.augmentation.lexicon import open_lexicon
from forerun.recipes.text_classifier.augmentation.word_edits import EDITS, NEED_SYNONYMS, NEGATIONS, Edits
from forerun.settings.schema import Section

Method = Literal[
    "synonym", "insertion", "swap", "deletion", "eda", "aeda", "keyboard", "character-swap", "contextual",
    "back-translation", "mixup", "cutoff", "r-drop", "fgm", "pgd",
]  # fmt: skip
IN_STEP = ("mixup", "cutoff", "r-drop", "fgm", "pgd")
"""Methods that act in the training step and leave the text alone."""
TEXT_STREAM, STEP_STREAM = 1, 2
"""Numbers of a sample's random streams, one for the text and one for the step."""
Rewrite = Callable[[str, float, np.random.Generator], str]
"""Another text for a text, at a strength."""


class Policy(Section):
    """One augmentation method with its strength and its share of the samples."""

    method: Method
    """Name of the method."""
    strength: Annotated[float, Field(gt=0)] = 0.1
    """Share of the words that edits touch; mixup: both parameters of Beta; cutoff: share of tokens; r-drop: weight of
    the divergence; fgm and pgd: length of the attack on each sample's embeddings."""
    probability: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the samples that get it."""


class AugmentationOptions(Section):
    """Augmentation of training samples; samples that are scored are never touched."""

    policies: list[Policy] = []
    """Their probabilities sum to 1 at most: a sample gets one of them or none."""
    oversample: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Repeat samples of rare labels until each label has this share of the most frequent one's."""
    protected: list[str] = []
    """Words that no method changes, beside negations."""
    protect_strongest: Annotated[int, Field(ge=0)] = 0
    """Protect so many words that tell labels apart most, by a logistic model of the training texts."""
    lexicon: str | None = None
    """`moby` (extra `lexicon`), or a JSON file of synonyms: {word: [synonym, …], …}."""
    masked_lm: str | None = None
    """Directory or hub id of a masked language model, for `contextual`."""
    translators: list[str] = []
    """Two directories or hub ids, there and back, for `back-translation`."""
    keep_label: bool = False
    """Keep the original where a logistic model of the training texts changes its mind about the new text."""

    @model_validator(mode="after")
    def _one_each(self) -> "AugmentationOptions":
        total = sum(policy.probability for policy in self.policies)
        if total > 1 + 1e-9:
            raise ValueError(
                f"recipe.augmentation.policies: a sample gets at most one, so their probabilities sum to at most 1; "
                f"found {total:g}. Lower them."
            )
        methods = [policy.method for policy in self.policies]
        if len(set(methods)) < len(methods):
            raise ValueError("recipe.augmentation.policies: give each method once.")
        return self


@dataclass
class Cost:
    """Measured cost of one method."""

    samples: int = 0
    changed: int = 0
    undone: int = 0
    """New texts that were dropped because the label seemed to change."""
    seconds: float = 0.0


@dataclass
class Augmenter:
    """Draws policies and applies those of text."""

    options: AugmentationOptions
    seed: int
    edits: Edits
    rewrites: Mapping[str, Rewrite] = field(default_factory=dict)
    """Methods that need a model: `contextual`, `back-translation`."""
    teacher: Callable[[Sequence[str]], np.ndarray] | None = None
    """Model that labels texts, to see whether augmentation changed a label."""
    cost: dict[str, Cost] = field(default_factory=dict)

    def policy(self, epoch: int, position: int) -> Policy | None:
        """Policy of the sample at a position of an epoch; None where it drew none."""
        place = self.generator(epoch, position, 0).random()
        for policy in self.options.policies:
            place -= policy.probability
            if place < 0:
                return policy
        return None

    def generator(self, epoch: int, position: int, stream: int) -> np.random.Generator:
        """Random numbers of one sample for one purpose."""
        return np.random.default_rng((self.seed, epoch, position, stream))

    def text(self, text: str, epoch: int, position: int) -> str:
        """The text that is trained on in place of `text`."""
        policy = self.policy(epoch, position)
        if policy is None or policy.method in IN_STEP:
            return text
        start = time.perf_counter()
        new_text = self.apply(policy, text, self.generator(epoch, position, TEXT_STREAM))
        cost = self.cost.setdefault(policy.method, Cost())
        cost.samples += 1
        cost.changed += new_text != text
        if self.options.keep_label and self.teacher is not None and new_text != text:
            before, after = self.teacher([text, new_text])
            if not np.array_equal(before, after):
                cost.undone += 1
                new_text = text
        cost.seconds += time.perf_counter() - start
        return new_text

    def apply(self, policy: Policy, text: str, random: np.random.Generator) -> str:
        """The text after a policy's method, whether or not the sample drew it."""
        if policy.method in EDITS:
            words = text.split()
            return " ".join(EDITS[policy.method](words, policy.strength, random, self.edits)) if words else text
        return self.rewrites[policy.method](text, policy.strength, random)


def make_augmenter(
    options: AugmentationOptions,
    seed: int,
    *,
    strongest: Sequence[str] = (),
    rewrites: Mapping[str, Rewrite] | None = None,
    teacher: Callable[[Sequence[str]], np.ndarray] | None = None,
) -> Augmenter:
    """An augmenter that has what its methods need.

    Raises:
        InvalidSettings: a method lacks its lexicon or model.
        NotSupported: back-translation without translators, which nothing can stand in for.
        BadData: the lexicon is no such file.
        MissingExtra: the lexicon's package is not installed.
    """
    rewrites = rewrites or {}
    synonyms = open_lexicon(options.lexicon) if options.lexicon is not None else {}
    for policy in options.policies:
        method = policy.method
        if method in NEED_SYNONYMS and not synonyms:
            raise InvalidSettings(
                f"recipe.augmentation: {method} needs synonyms; found no recipe.augmentation.lexicon. Set it to moby "
                f"(pip install 'forerun[lexicon]') or a JSON file of them, or take swap, deletion, aeda, keyboard or "
                f"character-swap."
            )
        if method == "back-translation" and method not in rewrites:
            raise NotSupported(
                "recipe.augmentation: back-translation is unavailable: it needs recipe.augmentation.translators, two "
                f"models that translate there and back; found {len(options.translators)}. Name two, or take another "
                "method."
            )
        if method == "contextual" and method not in rewrites:
            raise InvalidSettings(
                "recipe.augmentation: contextual needs recipe.augmentation.masked_lm, a masked language model; found "
                "none. Give a directory or hub id, or take another method."
            )
    protected = NEGATIONS | {word.lower() for word in (*options.protected, *strongest)}
    return Augmenter(options, seed, Edits(frozenset(protected), synonyms), rewrites, teacher)


def oversampled_positions(labels: Sequence[tuple[int, ...]], share: float) -> list[int]:
    """Sample at each position: every one once, then those of rare labels until each has `share` of the largest.

    Repeats go round the label's samples in order; a sample of several labels counts for all of them.
    """
    positions = list(range(len(labels)))
    members: dict[int, list[int]] = {}
    for number, own in enumerate(labels):
        for label in own:
            members.setdefault(label, []).append(number)
    counts = {label: len(numbers) for label, numbers in members.items()}
    target_count = math.ceil(share * max(counts.values(), default=0))
    for label in sorted(members, key=lambda each: counts[each]):
        turn = 0
        while counts[label] < target_count:
            sample = members[label][turn % len(members[label])]
            positions.append(sample)
            for own in labels[sample]:
                counts[own] += 1
            turn += 1
    return positions
