"""Does a second opinion that cannot see formatting keep a detector's promise on people whom it has not seen?

    python -m benchmarks.detector_agreement --data FILE [--export FOLDER] [--most 700]        4 minutes on one core

Readers of the shipped rows (`evaluation/baselines.py` of the recipe: n-grams of the code as it is, n-grams of the code
without its formatting, formatting counts) and, with `--export`, an exported detector, each alone and in pairs. A pair
flags where both do: its score is the lesser of two ranks among the validation scores. Thresholds are certified on the
shipped validation rows alone, as for the detector. FILE has rows of other sources (fields: `data/corpus.py`); those of
the shipped sources are left out. Prints the share that is flagged of each, and one JSON line.
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forerun.recipes.code_detector.data.corpus import CodeSample, embedded, from_path
from forerun.recipes.code_detector.evaluation.baselines import (
    Form,
    code_texts,
    fit_formatting,
    fit_ngrams,
    labels_of,
    scored,
)
from forerun.recipes.code_detector.evaluation.decision import certified_threshold
from forerun.recipes.code_detector.service.scoring import DetectionQuestion
from forerun.recipes.code_detector.service.serving import open_detector

METHOD = 1
BUDGETS = (0.01, 0.05)
Floats = NDArray[np.float64]
Scores = dict[str, Floats]
"""Scores by the name of the rows."""
READERS: tuple[tuple[str, Form], ...] = (("n-grams", "raw"), ("n-grams", "normalised"), ("formatting", "raw"))


def outside_rows(path: Path, most: int) -> dict[str, list[CodeSample]]:
    """Rows of sources that do not ship, by source and author, drawn at random."""
    shipped = {sample.source for sample in embedded().samples}
    rows: dict[str, list[CodeSample]] = {}
    for sample in from_path(path).samples:
        if sample.source not in shipped:
            rows.setdefault(f"{sample.source}, {'AI' if sample.is_ai else 'people'}", []).append(sample)
    return {name: random.Random(0).sample(all_, min(most, len(all_))) for name, all_ in sorted(rows.items())}


def reader_scores(rows: Mapping[str, Sequence[CodeSample]]) -> Iterator[tuple[str, Scores]]:
    """Each reader's scores of all rows, fitted on the shipped training rows."""
    train = embedded().split("train")
    for name, form in READERS:
        fit = fit_ngrams if name == "n-grams" else fit_formatting
        texts = code_texts([*train, *(sample for part in rows.values() for sample in part)], form)
        predict = fit(train, [texts[sample.id] for sample in train], labels_of(train))
        yield (
            f"{name}, {form}",
            {part: predict(samples, [texts[sample.id] for sample in samples]) for part, samples in rows.items()},
        )


def detector_scores(folder: Path, rows: Mapping[str, Sequence[CodeSample]]) -> Scores:
    """The score that an exported detector's verdict rests on."""
    detector, scores = open_detector(folder), {}
    for part, samples in rows.items():
        answers = (detector.answer([DetectionQuestion(sample.code, sample.language)])[0] for sample in samples)
        scores[part] = np.asarray([answer.decisive(detector.card) for answer in answers])
    return scores


def agreement(a: Scores, b: Scores) -> Scores:
    """The lesser of two ranks among the validation scores: above a threshold where both are."""
    return {part: np.minimum(_ranks(a, part), _ranks(b, part)) for part in a}


def _ranks(scores: Scores, part: str) -> Floats:
    return np.searchsorted(np.sort(scores["val"]), scores[part]) / len(scores["val"])


def flagged(scores: Scores, rows: Mapping[str, Sequence[CodeSample]], budget: float) -> dict[str, float]:
    """Share of each part above the threshold that validation certifies; empty where it certifies none."""
    certified = certified_threshold(scored(rows["val"], scores["val"]), budget)
    if certified is None:
        return {}
    above = {part: values > certified[0] for part, values in scores.items()}
    is_ai = labels_of(rows["test"]) == 1
    shares = {"test, AI": above["test"][is_ai], "test, people": above["test"][~is_ai]}
    shares |= {part: values for part, values in above.items() if part not in ("val", "test")}
    return {part: float(values.mean()) for part, values in shares.items()}


def main() -> None:
    """Score, pair, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--most", type=int, default=700, help="rows of a source and author")
    options = parser.parse_args()
    outside = outside_rows(options.data, options.most)
    rows: dict[str, Sequence[CodeSample]] = {split: embedded().split(split) for split in ("val", "test")}
    rows.update(outside)
    readers = dict(reader_scores(rows))
    if options.export is not None:
        readers["detector"] = detector_scores(options.export, rows)
    pairs = {f"{a} + {b}": agreement(readers[a], readers[b]) for a, b in combinations(readers, 2)}
    table = []
    for budget in BUDGETS:
        for name, scores in (readers | pairs).items():
            shares = flagged(scores, rows, budget)
            table.append({"budget": budget, "flags": name, **shares})
            print(f"{budget:4.0%} {name:45} " + ", ".join(f"{part} {share:.3f}" for part, share in shares.items()))
    print(json.dumps({"method": METHOD, "rows": {part: len(all_) for part, all_ in rows.items()}, "table": table}))


if __name__ == "__main__":
    main()
