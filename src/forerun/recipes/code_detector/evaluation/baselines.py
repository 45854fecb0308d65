"""Baselines of a detector of AI-written code: five classifiers that read no code, or read it shallowly.

| baseline | sees |
|---|---|
| majority | the share of AI in the training rows |
| length-only | the number of characters |
| formatting-counts | eleven counts of white space, line shapes and comment marks; no word of the code |
| metadata-probe | language and source; an AUC far from 0.5 means that the *data* gives the label away |
| character-ngrams | TF-IDF of 2 to 4 characters, logistic regression |

Those that read the text are fitted on the raw and on the format-normalised code. All are fitted on the training split;
thresholds come from validation, as for the detector. About 20 s for the shipped rows on two cores.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forerun.current_work import work
from forerun.evaluate.classification import ClassificationReport, Scored, report
from forerun.recipes.code_detector.data.corpus import CodeCorpus, CodeSample
from forerun.recipes.code_detector.data.normalise import normalise_code

Form = Literal["raw", "normalised", "none"]
Floats = NDArray[np.float64]
Predict = Callable[[Sequence[CodeSample], Sequence[str]], Floats]
Fit = Callable[[Sequence[CodeSample], Sequence[str], NDArray[np.int64]], Predict]

NGRAM_RANGE = (2, 4)
NGRAM_FEATURES = 200_000
NGRAM_MINIMUM_FILES = 3
NGRAM_INVERSE_PENALTY = 10.0
"""Best of 1, 10 and 100 on the shipped rows."""
LENGTH_BINS = 20

FORMATTING_COUNTS = (
    "characters",
    "lines",
    "tabs per character",
    "blanks per character",
    "empty lines per line",
    "mean line length",
    "longest line",
    "lines with trailing white space per line",
    "comment marks per line",
    "mean indentation",
    "has carriage returns",
)
VISIBLE = str.maketrans({" ": "\u2423", "\t": "\u2192", "\n": "\u21b5", "\r": "\u240d"})
"""Symbols for white space. sklearn/feature_extraction/text.py (1.9), `_char_ngrams`, folds runs of white space into one
blank; symbols stay."""
_COMMENT_MARK = re.compile(r"//|#|/\*|\"\"\"|'''")


@dataclass(frozen=True)
class BaselineResult:
    """One baseline on one form of the code."""

    name: str
    form: Form
    """`none` where the baseline does not read the code."""
    report: ClassificationReport
    test_scores: Floats
    """Probability of AI for each test row, to compare a detector row by row (`classification.auc_difference`)."""
    seconds: float


def run_baselines(corpus: CodeCorpus, forms: Sequence[Form] = ("raw", "normalised")) -> list[BaselineResult]:
    """All five, the reading ones on each of these forms of the code."""
    results = [_run(name, "none", corpus, {}, fit) for name, fit in BLIND.items()]
    for form in forms:
        texts = code_texts(corpus.samples, form)
        results += [_run(name, form, corpus, texts, fit) for name, fit in READING.items()]
    return results


def code_texts(samples: Sequence[CodeSample], form: Form) -> dict[str, str]:
    """Text of each sample by its id, in that form."""
    if form == "normalised":
        return {sample.id: normalise_code(sample.code, sample.language) for sample in samples}
    return {sample.id: sample.code for sample in samples}


def labels_of(samples: Sequence[CodeSample]) -> NDArray[np.int64]:
    """1 for AI, 0 for human."""
    return np.asarray([int(sample.is_ai) for sample in samples], dtype=np.int64)


def scored(samples: Sequence[CodeSample], scores: Floats) -> Scored:
    """Samples with their scores, ready to be reported on."""
    return Scored(labels_of(samples), scores, tuple(sample.group for sample in samples))


def slices_of(samples: Sequence[CodeSample]) -> dict[str, Sequence[str]]:
    """The parts that every report is broken down by."""
    return {"language": [s.language for s in samples], "source": [s.source for s in samples]}


def _run(name: str, form: Form, corpus: CodeCorpus, texts: dict[str, str], fit: Fit) -> BaselineResult:
    started = time.perf_counter()

    def text(samples: Sequence[CodeSample]) -> list[str]:
        return [texts.get(sample.id, "") for sample in samples]

    train, validation, test = (corpus.split(split) for split in ("train", "val", "test"))
    with work(f"fitting the baseline {name}" + ("" if form == "none" else f" on {form} code")):
        predict = fit(train, text(train), labels_of(train))
        scores = predict(test, text(test))
    figures = report(scored(validation, predict(validation, text(validation))), scored(test, scores), slices_of(test))
    return BaselineResult(name, form, figures, scores, time.perf_counter() - started)


def fit_majority(train: Sequence[CodeSample], texts: Sequence[str], labels: NDArray[np.int64]) -> Predict:
    """The training share of AI for every file."""
    return lambda samples, texts: np.full(len(samples), float(labels.mean()))


def fit_length(train: Sequence[CodeSample], texts: Sequence[str], labels: NDArray[np.int64]) -> Predict:
    """Share of AI among the training rows of like length: quantile bins of the number of characters."""
    lengths = np.asarray([len(text) for text in texts])
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, lengths)
    ai_counts = np.bincount(bins, weights=labels, minlength=len(edges) + 1)
    total = np.bincount(bins, minlength=len(edges) + 1)
    shares = (ai_counts + labels.mean()) / (total + 1)
    return lambda samples, texts: shares[np.searchsorted(edges, [len(text) for text in texts])]


def fit_formatting(train: Sequence[CodeSample], texts: Sequence[str], labels: NDArray[np.int64]) -> Predict:
    """Boosted trees on the formatting counts."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    def features(texts: Sequence[str]) -> Floats:
        return np.asarray([formatting_counts(text) for text in texts], dtype=np.float64)

    model = HistGradientBoostingClassifier(random_state=0)
    with threadpool_limits(limits=1):  # its threads spin: on a shared machine two are many times slower than one
        model.fit(features(texts), labels)
    return lambda samples, texts: model.predict_proba(features(texts))[:, 1]


def fit_metadata(train: Sequence[CodeSample], texts: Sequence[str], labels: NDArray[np.int64]) -> Predict:
    """Share of AI among the training rows of one language and source; the overall share for a new pair."""
    by_key: dict[tuple[str, str], list[int]] = {}
    for sample, label in zip(train, labels, strict=True):
        by_key.setdefault((sample.language, sample.source), []).append(int(label))
    shares = {key: float(np.mean(key_labels)) for key, key_labels in by_key.items()}
    overall = float(labels.mean())
    return lambda samples, texts: np.asarray([shares.get((s.language, s.source), overall) for s in samples])


def fit_ngrams(train: Sequence[CodeSample], texts: Sequence[str], labels: NDArray[np.int64]) -> Predict:
    """Logistic regression on TF-IDF weights of character n-grams."""
    vectoriser = ngram_vectoriser(len(texts))
    model = fit_ngram_weights(vectoriser.fit_transform(text.translate(VISIBLE) for text in texts), labels)

    def predict(samples: Sequence[CodeSample], texts: Sequence[str]) -> Floats:
        features = vectoriser.transform(text.translate(VISIBLE) for text in texts)
        return model.predict_proba(features)[:, 1].astype(np.float64)

    return predict


def ngram_vectoriser(files: int, terms: Sequence[str] | None = None) -> Any:
    """TF-IDF weights of character n-grams, to be fitted on so many files, or with these terms."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        analyzer="char",
        ngram_range=NGRAM_RANGE,
        min_df=min(NGRAM_MINIMUM_FILES, files),
        max_features=NGRAM_FEATURES,
        sublinear_tf=True,
        lowercase=False,
        vocabulary=terms,
        dtype=np.float32,  # type: ignore[arg-type]
    )


def fit_ngram_weights(features: Any, labels: NDArray[np.int64]) -> Any:
    """Logistic regression on features of n-grams."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=NGRAM_INVERSE_PENALTY, solver="liblinear").fit(features, labels)


def formatting_counts(text: str) -> list[float]:
    """The eleven counts of `FORMATTING_COUNTS`, in that order."""
    lines = text.split("\n")
    characters, number = max(len(text), 1), len(lines)
    lengths = [len(line) for line in lines]
    return [
        len(text),
        number,
        text.count("\t") / characters,
        text.count(" ") / characters,
        sum(not line.strip() for line in lines) / number,
        sum(lengths) / number,
        max(lengths),
        sum(line != line.rstrip() for line in lines) / number,
        len(_COMMENT_MARK.findall(text)) / number,
        sum(len(line) - len(line.lstrip()) for line in lines) / number,
        float("\r" in text),
    ]


BLIND: dict[str, Fit] = {"majority": fit_majority, "metadata-probe": fit_metadata}
READING: dict[str, Fit] = {
    "length-only": fit_length,
    "formatting-counts": fit_formatting,
    "character-ngrams": fit_ngrams,
}
