"""How near do answers come to numbers? Errors in the unit of the labels, beside the mean, length and TF-IDF."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from forerun.evaluate.proportions import draws_of_rows
from forerun.evaluate.text_baselines import in_blocks
from forerun.own.label_tables import THIRDS, shortened, thirds
from forerun.own.task import judging_score, named, strongest
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement

NUMBER_SCORES = {"rmse": False, "mae": False, "r2": True, "spearman": True}
DRAWS, EXAMPLES = 1000, 8


class NumberRows(Protocol):
    """Rows with their numbers."""

    @property
    def texts(self) -> Sequence[str]:
        """Text of each row."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        ...

    targets: np.ndarray
    note: str
    """What is to be said of them."""


def number_scores(targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    """Root mean squared and mean absolute error, share of the variance explained, and rank correlation."""
    errors = answers - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    return {
        "rmse": float(np.sqrt((errors**2).mean())),
        "mae": float(np.abs(errors).mean()),
        "r2": 1 - float((errors**2).sum()) / spread if spread else 0.0,
        "spearman": _spearman(targets, answers),
    }


def number_baselines(train: NumberRows, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Answers of the training mean, of the length alone and of TF-IDF with ridge regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.pipeline import make_pipeline

    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge())
    words.fit(train.texts, train.targets)
    lengths = LinearRegression().fit(_sizes(train.texts), train.targets)
    return {
        "mean": np.full(len(texts), float(train.targets.mean())),
        "length": lengths.predict(_sizes(texts)),
        "tf-idf": np.concatenate([words.predict(part) for part in in_blocks(texts)]),
    }


def drawn_scores(score: str, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """One score of rows that are drawn again, `DRAWS` times."""
    parts: list[np.ndarray] = []
    for draw in draws_of_rows(len(answers), DRAWS):
        truth, errors = targets[draw], (answers - targets)[draw]
        if score == "rmse":
            parts.append(np.sqrt((errors**2).mean(axis=1)))
        elif score == "mae":
            parts.append(np.abs(errors).mean(axis=1))
        else:
            parts.append(
                np.array([number_scores(a, a + b)[score] for a, b in zip(truth, errors, strict=True)], dtype=float)
            )
    return np.concatenate(parts)


def judge_numbers(answers: np.ndarray, train: NumberRows, test: NumberRows, metric: str | None = None) -> Judgement:
    """Scores of the test rows beside the baselines, with an interval, by length, and the largest errors."""
    others = number_baselines(train, test.texts)
    scores = {name: number_scores(test.targets, own) for name, own in others.items()}
    score = judging_score(NUMBER_SCORES, metric)
    best = strongest(score, scores, is_higher_better=NUMBER_SCORES[score])
    metrics = number_scores(test.targets, answers)
    own, other = (drawn_scores(score, test.targets, each) for each in (answers, others[best]))
    gaps = own - other
    (low, high), (gap_low, gap_high) = np.quantile(own, [0.025, 0.975]), np.quantile(gaps, [0.025, 0.975])
    metrics |= {**named(scores), f"{score}.low": float(low), f"{score}.high": float(high)}
    metrics |= {f"{score}.gap.low": float(gap_low), f"{score}.gap.high": float(gap_high)}
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in NUMBER_SCORES)]]
    rows += [[name, *(each[figure] for figure in NUMBER_SCORES)] for name, each in scores.items()]
    note = (
        f"{len(test.texts):,} test rows. {score} {low:.3f} to {high:.3f} (95 %, rows drawn again); {gap_low:+.3f} to "
        f"{gap_high:+.3f} against {best}, the strongest baseline. {train.note}"
    ).strip()
    tables = [
        ResultTable(title="Test, beside its baselines", note=note, columns=["", *NUMBER_SCORES], rows=rows),
        _length_table(answers, test),
        _error_table(answers, test),
    ]
    return Judgement(metrics, tables, comparison_data={"answers": answers.round(6).tolist()})


def _length_table(answers: np.ndarray, test: NumberRows) -> ResultTable:
    rows: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(test.lengths), strict=True):
        if len(part):
            scores = number_scores(test.targets[part], answers[part])
            rows.append([name, len(part), scores["rmse"], scores["mae"]])
    return ResultTable(title="By length", columns=["rows", "count", "rmse", "mae"], rows=rows)


def _error_table(answers: np.ndarray, test: NumberRows) -> ResultTable:
    worst: list[int] = np.argsort(-np.abs(answers - test.targets), kind="stable")[:EXAMPLES].tolist()
    rows: list[list[Cell]] = [[shortened(test.texts[n]), float(test.targets[n]), float(answers[n])] for n in worst]
    return ResultTable(title="Largest errors", columns=["text", "true", "answer"], rows=rows)


def _sizes(texts: Sequence[str]) -> np.ndarray:
    return np.log1p([[len(text), len(text.split())] for text in texts])


def _spearman(first: np.ndarray, second: np.ndarray) -> float:
    ranks = [np.unique(values, return_inverse=True, return_counts=True) for values in (first, second)]
    # equal values share the mean of their places
    middle = [(np.cumsum(counts) - (counts - 1) / 2)[inverse] for _, inverse, counts in ranks]
    spread = [float(each.std()) for each in middle]
    if not all(spread):
        return 0.0
    return float(((middle[0] - middle[0].mean()) * (middle[1] - middle[1].mean())).mean() / (spread[0] * spread[1]))
