"""The reader that a flag needs beside the detector: blind to formatting, and the same when read back."""

import dataclasses

import numpy as np
import pytest

from forerun.errors import BadData
from forerun.recipes.code_detector.data.test_training_data import corpus
from forerun.recipes.code_detector.evaluation.baselines import code_texts, fit_ngrams, labels_of
from forerun.recipes.code_detector.evaluation.second_opinion import FILE, fit_second_opinion, read_second_opinion

SAMPLES = corpus(300).samples


@pytest.fixture(scope="module")
def opinion():
    return fit_second_opinion(SAMPLES)


def test_it_is_the_baseline_on_normalised_code(opinion):
    texts = list(code_texts(SAMPLES, "normalised").values())
    expected = fit_ngrams(SAMPLES, texts, labels_of(SAMPLES))(SAMPLES, texts)
    np.testing.assert_allclose(opinion.of_samples(SAMPLES), expected, rtol=1e-6)


def test_formatting_changes_nothing(opinion):
    one, other = opinion(["def f(x):\n\treturn x+1 # more\n", "def f( x ):\n\n    return (x + 1)"], ["python"] * 2)
    assert one == other


def test_it_is_read_back_as_it_was(opinion, tmp_path):
    opinion.save(tmp_path)
    np.testing.assert_array_equal(read_second_opinion(tmp_path).of_samples(SAMPLES), opinion.of_samples(SAMPLES))


def test_what_is_missing_or_damaged_is_said(opinion, tmp_path):
    with pytest.raises(BadData, match="Export the run again"):
        read_second_opinion(tmp_path)
    opinion.save(tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-100])
    with pytest.raises(BadData, match="Export the run again"):
        read_second_opinion(tmp_path)
    dataclasses.replace(opinion, weights=opinion.weights[:-1]).save(tmp_path)
    with pytest.raises(BadData, match="weights"):
        read_second_opinion(tmp_path)


def test_one_kind_of_author_gives_no_opinion():
    assert fit_second_opinion([sample for sample in SAMPLES if sample.is_ai]) is None
