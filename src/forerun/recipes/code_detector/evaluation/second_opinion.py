"""A second opinion on a file that cannot see its formatting: character n-grams of the normalised code, by logistic
regression.

A detector that reads code as it is learns much formatting, and people whom it has not seen format otherwise. A file
that it flags stays flagged only where this reader agrees (`decision.certified_pair`); what that does on unseen people's
files is in `unseen_people.json`. It goes with an exported model as `second_opinion.safetensors`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from forerun.current_work import work
from forerun.errors import BadData
from forerun.evaluate.classification import Floats
from forerun.recipes.code_detector.data.corpus import CodeSample
from forerun.recipes.code_detector.data.normalise import normalise_code
from forerun.recipes.code_detector.evaluation.baselines import VISIBLE, fit_ngram_weights, labels_of, ngram_vectoriser

FILE = "second_opinion.safetensors"


@dataclass(frozen=True)
class SecondOpinion:
    """A fitted reader of code without formatting."""

    vectoriser: Any
    """scikit-learn's `TfidfVectorizer`, fitted."""
    weights: Floats
    """Log-odds for AI of each n-gram (n,)."""
    intercept: float

    def __call__(self, codes: Sequence[str], languages: Sequence[str]) -> Floats:
        """Probability that each file is AI-written (n,), by its code without formatting."""
        texts = (normalise_code(*each).translate(VISIBLE) for each in zip(codes, languages, strict=True))
        log_odds = self.vectoriser.transform(texts) @ self.weights + self.intercept
        return 1 / (1 + np.exp(-np.asarray(log_odds, dtype=np.float64)))

    def of_samples(self, samples: Sequence[CodeSample]) -> Floats:
        """Probability that each sample is AI-written (n,)."""
        with work("asking the second opinion"):
            return self([sample.code for sample in samples], [sample.language for sample in samples])

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        vocabulary: dict[str, int] = self.vectoriser.vocabulary_
        terms = sorted(vocabulary, key=vocabulary.__getitem__)
        arrays = {
            "idf": np.asarray(self.vectoriser.idf_, dtype=np.float64),
            "weights": np.asarray(self.weights, dtype=np.float64),
            "intercept": np.asarray([self.intercept]),
        }
        save_file(arrays, folder / FILE, metadata={"terms": json.dumps(terms)})


def fit_second_opinion(samples: Sequence[CodeSample]) -> SecondOpinion | None:
    """The reader fitted on training files; None where all have one kind of author."""
    labels = labels_of(samples)
    if len(set(labels.tolist())) < 2:
        return None
    with work("fitting the second opinion, which reads code without formatting"):
        texts = [normalise_code(sample.code, sample.language).translate(VISIBLE) for sample in samples]
        vectoriser = ngram_vectoriser(len(texts))
        model = fit_ngram_weights(vectoriser.fit_transform(texts), labels)
    return SecondOpinion(vectoriser, np.asarray(model.coef_[0], dtype=np.float64), float(model.intercept_[0]))


def read_second_opinion(folder: Path) -> SecondOpinion:
    """The reader beside an exported model.

    Raises:
        BadData: it is not there, or it is damaged.
    """
    try:
        with safe_open(folder / FILE, framework="numpy") as file:
            terms: Any = json.loads((file.metadata() or {})["terms"])
            idf, weights, intercept = (file.get_tensor(name) for name in ("idf", "weights", "intercept"))
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise ValueError("its terms are no list of texts")
        if not len(terms) == len(set(terms)) == len(idf) == len(weights):
            raise ValueError(f"{len(terms)} terms, {len(weights)} weights")
        vectoriser = ngram_vectoriser(1, terms)
        vectoriser.idf_ = idf.astype(np.float32)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise BadData(
            f"{folder / FILE}: the card asks for a second opinion that cannot be read: {error}. Export the run again."
        ) from error
    return SecondOpinion(vectoriser, weights, float(intercept[0]))
