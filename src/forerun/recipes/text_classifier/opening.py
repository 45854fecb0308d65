"""Opening the data of `text-classifier`: corpus, tokens, and an augmenter that has what its methods need."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from forerun.data.labelled_text import LabelledText, Part, TextCorpus
from forerun.data.text_tokens import BorrowedTokens, LearnedTokens, TextTokens
from forerun.evaluate.proportions import wilson
from forerun.evaluate.text_baselines import WordModel, fit_words
from forerun.recipes.text_classifier.augmentation.policies import (
    AugmentationOptions,
    Augmenter,
    Policy,
    Rewrite,
    make_augmenter,
)
from forerun.recipes.text_classifier.augmentation.word_edits import NEGATIONS
from forerun.recipes.text_classifier.data import (
    TextClassifierOptions,
    TextData,
    open_corpus,
    positions_of,
    select_rows,
)
from forerun.recipes.text_classifier.workload import FROM_SCRATCH, NOT_HERE, frozen_states, pretrained_tokeniser
from forerun.records import Record
from forerun.report.tables import ResultTable
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings

CHECKED_TEXTS = 200
"""Training texts on which a method's cost and its keeping of labels are measured."""
CHECK_SEED = 2
FROZEN_FOLDER = Path("runs") / "frozen"
"""States of frozen layers, in the current folder."""


class MethodCheck(Record):
    """One method on the first training texts, all of them whatever its probability."""

    method: str
    texts: int
    changed: int
    kept: int
    """Changed texts to which a logistic model of the training texts still gives the original's label."""
    seconds: float
    """Seconds that the method takes for one text."""


def open_data(settings: Settings, corpus: TextCorpus | None = None, *, lengths_only: bool = False) -> TextData:
    """Open rows, tokens and augmentation; with `lengths_only` a learned tokeniser replaces one that is not here.

    Raises:
        BadData, InvalidSettings, MissingExtra, NotSupported, UnknownModel: something is wrong or missing.
    """
    options = recipe_options(settings, TextClassifierOptions)
    corpus = open_corpus(settings, options) if corpus is None else corpus
    rows = select_rows(corpus, settings.data.examples)
    augmenter = _augmenter(settings, options, rows["train"], corpus)
    return TextData(
        settings=settings,
        corpus=corpus,
        rows=rows,
        tokens_of=_tokens(settings, options, rows, lengths_only=lengths_only),
        augmenter=augmenter,
        positions=positions_of(rows["train"], options.augmentation.oversample),
        frozen=frozen_states(settings, options, FROZEN_FOLDER, with_types=corpus.is_paired, sizes_only=lengths_only),
    )


def keep_states(data: TextData, parts: Sequence[Part]) -> tuple[float, float]:
    """Compute and keep the states of these parts' texts; returns the seconds that it took, and 0.

    For a forecast (`sizes_only`) nothing is computed: it returns the seconds that it would take, and the seconds of
    data work that augmented texts, which are never cached, will add to each step.
    """
    if data.frozen is None:
        return 0.0, 0.0
    samples = [sample for part in parts for sample in data.encoded(part)]
    start = time.perf_counter()
    data.frozen.fill(samples)
    if not data.frozen.sizes_only:
        return time.perf_counter() - start, 0.0
    share = sum(policy.probability for policy in data.augmenter.options.policies if not _is_of_the_step(policy))
    steps = data.epoch_steps(0)
    new_tokens = share * sum(data.tokens(indices)[0] for step in steps for indices in step) / len(steps)
    return data.frozen.seconds_of(data.frozen.unknown_tokens(samples)), data.frozen.seconds_of(new_tokens)


def joined_text(row: LabelledText) -> str:
    """Both texts of a row as one, for models of words."""
    return row.text if row.pair is None else f"{row.text} {row.pair}"


def _augmenter(
    settings: Settings, options: TextClassifierOptions, train: Sequence[LabelledText], corpus: TextCorpus
) -> Augmenter:
    augmentation = options.augmentation
    words = word_model(train, corpus) if augmentation.keep_label or augmentation.protect_strongest else None
    strongest = words.strongest(augmentation.protect_strongest) if words is not None else []
    teacher = words.labels if words is not None and augmentation.keep_label else None
    protected = frozenset(NEGATIONS | {word.lower() for word in (*augmentation.protected, *strongest)})
    return make_augmenter(
        augmentation, settings.seed, strongest=strongest, rewrites=_rewrites(augmentation, protected), teacher=teacher
    )


def word_model(train: Sequence[LabelledText], corpus: TextCorpus) -> WordModel:
    """TF-IDF and logistic regression of the training rows."""
    import numpy as np

    targets = np.zeros((len(train), len(corpus.label_names)), dtype=np.int64)
    for number, row in enumerate(train):
        targets[number, list(row.labels)] = 1
    return fit_words([joined_text(row) for row in train], targets, is_multi_label=corpus.is_multi_label)


def _rewrites(options: AugmentationOptions, protected: frozenset[str]) -> Mapping[str, Rewrite]:
    """Methods that need a model, where a policy uses them and the options name their model."""
    methods = {policy.method for policy in options.policies}
    rewrites: dict[str, Rewrite] = {}
    if "contextual" in methods and options.masked_lm is not None:
        from forerun.recipes.text_classifier.augmentation.masked_words import contextual

        rewrites["contextual"] = contextual(options.masked_lm, protected)
    if "back-translation" in methods and len(options.translators) == 2:
        from forerun.recipes.text_classifier.augmentation.masked_words import back_translation

        rewrites["back-translation"] = back_translation(options.translators)
    return rewrites


def _tokens(
    settings: Settings,
    options: TextClassifierOptions,
    rows: Mapping[Part, Sequence[LabelledText]],
    *,
    lengths_only: bool,
) -> TextTokens:
    texts = [text for row in rows["train"] for text in (row.text, row.pair) if text is not None]
    if settings.model.name == FROM_SCRATCH:
        size = settings.model.config.get("vocabulary_size", options.vocabulary_size)
        return LearnedTokens(texts, int(size))
    try:
        return BorrowedTokens(pretrained_tokeniser(settings.model.name, local_only=lengths_only))
    except NOT_HERE:
        if not lengths_only:
            raise
        return LearnedTokens(texts, options.vocabulary_size)


def check_methods(data: TextData) -> list[MethodCheck]:
    """Every method of text on the first training texts: what it changes, whether labels are kept, what it costs."""
    policies = [policy for policy in data.augmenter.options.policies if not _is_of_the_step(policy)]
    if not policies:
        return []
    words = word_model(data.rows["train"], data.corpus)
    texts = [row.text for row in data.rows["train"][:CHECKED_TEXTS]]
    checks = []
    for policy in policies:
        start = time.perf_counter()
        new_texts = [
            data.augmenter.apply(policy, text, data.augmenter.generator(0, place, CHECK_SEED))
            for place, text in enumerate(texts)
        ]
        seconds = (time.perf_counter() - start) / len(texts)
        pairs = [(old, new) for old, new in zip(texts, new_texts, strict=True) if old != new]
        same_labels = 0
        if pairs:
            before, after = (words.labels([pair[n] for pair in pairs]) for n in (0, 1))
            same_labels = int((before == after).reshape(len(pairs), -1).all(axis=1).sum())
        checks.append(
            MethodCheck(method=policy.method, texts=len(texts), changed=len(pairs), kept=same_labels, seconds=seconds)
        )
    return checks


def check_table(checks: Sequence[MethodCheck]) -> ResultTable:
    """Table of what each method does to texts and what it costs."""
    rows = [
        [c.method, f"{c.changed} of {c.texts}", "–" if not c.changed else str(wilson(c.kept, c.changed)),
         f"{c.seconds * 1e6:.0f} µs"]
        for c in checks
    ]  # fmt: skip
    return ResultTable(
        title="Augmentation of text",
        note="Label kept: share of the changed texts to which a logistic model of the training texts gives the label "
        "that it gives to the original, with its 95 % interval.",
        columns=["method", "changed", "label kept", "per text"],
        rows=[list(row) for row in rows],
    )


def _is_of_the_step(policy: Policy) -> bool:
    from forerun.recipes.text_classifier.augmentation.policies import IN_STEP

    return policy.method in IN_STEP
