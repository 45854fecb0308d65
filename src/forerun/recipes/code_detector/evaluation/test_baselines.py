import numpy as np
import pytest

from forerun.recipes.code_detector.data.corpus import CodeCorpus, CodeSample
from forerun.recipes.code_detector.evaluation import baselines as b


def corpus(human: str, ai: str, *, size: int = 120, languages: tuple[str, str] = ("python", "python")) -> CodeCorpus:
    """Rows whose code is one of two templates; `{n}` becomes a number."""
    random = np.random.default_rng(0)
    rows = []
    for index in range(size):
        is_ai = index % 2
        rows.append(
            CodeSample(
                id=str(index),
                code=(ai if is_ai else human).replace("{n}", str(random.integers(100, 999))),
                language=languages[is_ai],
                label="ai" if is_ai else "human",
                group=f"g{index}",
                split=("train", "train", "val", "test")[index // 2 % 4],
                source="made",
                generator="m" if is_ai else "human",
                task=None,
            )
        )
    return CodeCorpus(tuple(rows))


def aucs(rows: CodeCorpus) -> dict[tuple[str, str], float]:
    return {(result.name, result.form): result.report.roc_auc for result in b.run_baselines(rows)}


def test_indistinguishable_code_is_chance_for_all():
    auc_by_baseline = aucs(corpus("x = {n}\n", "x = {n}\n"))
    assert len(auc_by_baseline) == 8
    assert all(0.2 < auc < 0.8 for auc in auc_by_baseline.values())
    assert auc_by_baseline["majority", "none"] == auc_by_baseline["metadata-probe", "none"] == 0.5


def test_formatting_alone_is_seen_in_the_raw_form_only():
    auc_by_baseline = aucs(corpus("def f():\n\treturn {n}\n", "def f():\n    return {n}\n"))
    assert auc_by_baseline["formatting-counts", "raw"] == auc_by_baseline["character-ngrams", "raw"] == 1.0
    assert auc_by_baseline["formatting-counts", "normalised"] == pytest.approx(0.5)
    assert auc_by_baseline["character-ngrams", "normalised"] < 0.8


def test_words_are_seen_by_ngrams_in_both_forms():
    auc_by_baseline = aucs(corpus("abc = {n}\n", "xyz = {n}\n"))
    assert auc_by_baseline["character-ngrams", "raw"] == auc_by_baseline["character-ngrams", "normalised"] == 1.0
    assert auc_by_baseline["length-only", "raw"] == pytest.approx(0.5)


def test_the_metadata_probe_fires_on_a_leak():
    auc_by_baseline = aucs(corpus("x = {n}\n", "x = {n}\n", languages=("cpp", "java")))
    assert auc_by_baseline["metadata-probe", "none"] == 1.0


def test_formatting_counts_by_hand():
    text = "a = 1  \n\n\tb  # c\r\n"
    counts = dict(zip(b.FORMATTING_COUNTS, b.formatting_counts(text), strict=True))
    assert counts == pytest.approx(
        {
            "characters": 18,
            "lines": 4,
            "tabs per character": 1 / 18,
            "blanks per character": 7 / 18,
            "empty lines per line": 2 / 4,
            "mean line length": 15 / 4,
            "longest line": 8,
            "lines with trailing white space per line": 2 / 4,
            "comment marks per line": 1 / 4,
            "mean indentation": 1 / 4,
            "has carriage returns": 1,
        }
    )
