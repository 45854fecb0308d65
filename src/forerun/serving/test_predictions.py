"""Rows of a file keep all their columns, and no answer is taken for one of them."""

import json

import pytest

from forerun.errors import BadData
from forerun.serving.predictions import write_predictions

ANSWER = {"label": "good"}


def written(tmp_path, rows, suffix):
    to = tmp_path / f"out{suffix}"
    result = write_predictions(lambda: iter([(row, ANSWER) for row in rows]), to)
    return result, to.read_text(encoding="utf-8")


def test_an_answer_has_one_name_in_all_rows(tmp_path):
    rows = [{"text": "a", "label": "bad"}, {"text": "b"}]
    result, text = written(tmp_path, rows, ".jsonl")
    assert [json.loads(line)["predicted_label"] for line in text.splitlines()] == ["good", "good"]
    assert result.columns == ["predicted_label"]
    assert written(tmp_path, rows, ".csv")[1].splitlines() == ["text,label,predicted_label", "a,bad,good", "b,,good"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
def test_a_later_column_that_is_called_like_the_answer_is_refused(tmp_path, suffix):
    with pytest.raises(BadData, match="row 2: the same columns as the first row; found 'label' too"):
        written(tmp_path, [{"text": "a"}, {"text": "b", "label": "bad"}], suffix)
    assert not list(tmp_path.iterdir())


def test_a_table_loses_no_column(tmp_path):
    rows = [{"text": "a"}, {"text": "b", "more": 1}]
    with pytest.raises(BadData, match=r"found 'more' too\. Name a file ending in \.jsonl"):
        written(tmp_path, rows, ".csv")
    assert json.loads(written(tmp_path, rows, ".jsonl")[1].splitlines()[1]) == {**rows[1], **ANSWER}
