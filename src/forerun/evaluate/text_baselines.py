"""What a text classifier must beat: answers that read nothing, the length alone, and TF-IDF with logistic regression.

- majority: the most frequent label (several labels: those of more than half of the training rows).
- prior: the training shares as probabilities, decided by drawing from them.
- all-negative: no label at all; with one label a row, always the first.
- length: logistic regression on the logarithms of characters and words.
- tf-idf: words and pairs of words, logistic regression (scikit-learn's defaults, `C` = 1).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.evaluate.label_metrics import Cells, Floats, LabelPredictions

DRAW_SEED = 0
BLOCK = 2**16
"""Texts that are answered at once: their features are in memory."""
Texts = Sequence[str]


@dataclass(frozen=True)
class Baseline:
    """Probabilities of a fitted baseline for any texts."""

    name: str
    answer: Callable[[Texts], Floats]


def fit_baselines(texts: Texts, targets: Cells, *, is_multi_label: bool) -> list[Baseline]:
    """Every baseline, fitted to training texts and their labels (rows, labels)."""
    shares = targets.mean(axis=0)
    most = (shares > 0.5).astype(float) if is_multi_label else np.eye(len(shares))[shares.argmax()]
    none = np.zeros(len(shares)) if is_multi_label else np.eye(len(shares))[0]

    def draw_answers(rows: Texts) -> Floats:
        random = np.random.default_rng(DRAW_SEED)
        if is_multi_label:
            return (random.random((len(rows), len(shares))) < shares).astype(float)
        return np.eye(len(shares))[random.choice(len(shares), size=len(rows), p=shares / shares.sum())]

    def constant(answer: Floats) -> Callable[[Texts], Floats]:
        return lambda rows: np.tile(answer, (len(rows), 1)).astype(float)

    return [
        Baseline("majority", constant(most)),
        Baseline("prior", draw_answers),
        Baseline("all-negative", constant(none)),
        Baseline("length", fit_length(texts, targets, is_multi_label=is_multi_label)),
        Baseline("tf-idf", fit_words(texts, targets, is_multi_label=is_multi_label).probabilities),
    ]


@dataclass(frozen=True)
class WordModel:
    """TF-IDF and logistic regression."""

    vectors: Any
    regressions: list[Any]
    """One regression for each label, or a single one over all classes."""
    classes: int
    is_multi_label: bool

    def probabilities(self, texts: Texts) -> Floats:
        """Probability of each label (texts, labels)."""
        return _answer(self.regressions, self.vectors.transform(list(texts)), self.classes, self.is_multi_label)

    def labels(self, texts: Texts) -> Cells:
        """Labels above one half, or number of the most probable class."""
        probabilities = self.probabilities(texts)
        return (probabilities > 0.5).astype(np.int64) if self.is_multi_label else probabilities.argmax(axis=1)

    def strongest(self, count: int) -> list[str]:
        """Single words with the largest weights of either sign."""
        weights = np.abs(np.concatenate([r.coef_ for r in self.regressions if hasattr(r, "coef_")])).max(axis=0)
        names = self.vectors.get_feature_names_out()
        return [str(names[n]) for n in np.argsort(-weights, kind="stable") if " " not in names[n]][:count]


def fit_words(texts: Texts, targets: Cells, *, is_multi_label: bool) -> WordModel:
    """TF-IDF of words and pairs of words with logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    features = vectors.fit_transform(list(texts))
    return WordModel(vectors, _fit(features, targets, is_multi_label), targets.shape[1], is_multi_label)


def fit_length(texts: Texts, targets: Cells, *, is_multi_label: bool) -> Callable[[Texts], Floats]:
    """Logistic regression on the length."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    regressions = _fit(scaler.fit_transform(_lengths(texts)), targets, is_multi_label)
    return lambda rows: _answer(regressions, scaler.transform(_lengths(rows)), targets.shape[1], is_multi_label)


def answers_of(baseline: Baseline, texts: Texts, targets: Cells, *, is_multi_label: bool) -> LabelPredictions:
    """A baseline's answers to rows whose labels are known."""
    answers = np.concatenate([baseline.answer(part) for part in in_blocks(texts)])
    return LabelPredictions(targets, answers, is_multi_label)


def in_blocks(texts: Texts) -> Iterator[list[str]]:
    """Texts, some thousands at once."""
    for first in range(0, len(texts), BLOCK):
        yield list(texts[first : first + BLOCK])


def _lengths(texts: Texts) -> Floats:
    return np.log1p([[len(text), len(text.split())] for text in texts])


def _fit(features: Any, targets: Cells, is_multi_label: bool) -> list[Any]:
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression

    classifiers = []
    for classes in targets.T if is_multi_label else [targets.argmax(axis=1)]:
        is_constant = classes.min() == classes.max()  # scikit-learn's regression refuses a single class
        kind = DummyClassifier() if is_constant else LogisticRegression(max_iter=1000)
        classifiers.append(kind.fit(features, classes))
    return classifiers


def _answer(regressions: list[Any], features: Any, classes: int, is_multi_label: bool) -> Floats:
    rows = features.shape[0]
    probabilities = np.zeros((rows, classes))
    if not is_multi_label:
        probabilities[:, regressions[0].classes_] = regressions[0].predict_proba(features)
        return probabilities
    for number, regression in enumerate(regressions):
        classes_of_label = list(regression.classes_)
        probabilities[:, number] = (
            regression.predict_proba(features)[:, classes_of_label.index(1)] if 1 in classes_of_label else 0.0
        )
    return probabilities
