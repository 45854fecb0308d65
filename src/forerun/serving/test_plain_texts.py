"""A plain text is asked under the column that was trained on, split into words for a tagger, or refused with a remedy."""

import re

import pytest

from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows
from forerun.errors import BadData
from forerun.serving.plain_texts import rows_with_columns
from forerun.serving.questions import question_of
from forerun.serving.test_questions import facts


def rows_of_text(tmp_path, name, text, **fields):
    path = tmp_path / name
    path.write_text(text)
    return list(rows_with_columns(read_own_rows(str(path)), facts(**fields), str(path)))


TAGGER = {"format": "tagged", "fields": {"words": "tokens", "tags": "ner_tags"}}


def test_a_tagger_gets_the_words_of_a_text(tmp_path):
    (row,) = rows_of_text(tmp_path, "n.txt", "Ada Lovelace came to Paris, by train.\n", **TAGGER)
    words = ("Ada", "Lovelace", "came", "to", "Paris", ",", "by", "train", ".")
    assert row == {"tokens": list(words)}
    assert question_of(row, facts(**TAGGER), "row 1", Repairs()).words == words


def test_each_line_is_a_row_under_the_column_that_was_trained_on(tmp_path):
    labelled = {"format": "labelled", "fields": {"text": "review", "label": "stars"}}
    assert rows_of_text(tmp_path, "n.txt", "good film\nbad film\n", **labelled) == [
        {"review": "good film"}, {"review": "bad film"},
    ]  # fmt: skip


def test_a_table_keeps_its_columns(tmp_path):
    assert rows_of_text(tmp_path, "n.csv", "text\ngood film\n", **TAGGER) == [{"text": "good film"}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"format": "labelled", "fields": {"text": "one", "pair": "two", "label": "same"}},
            "a plain text has no columns, and this model reads 'one' and 'two', as in training. Give a .jsonl or .csv "
            "file with those columns.",
        ),
        (
            {"format": "messages", "fields": {"messages": "chat"}},
            "reads 'chat', as in training. Give a .jsonl or .csv file with that column.",
        ),
    ],
)
def test_a_model_that_reads_more_than_a_text_says_what_file_to_give(tmp_path, fields, said):
    with pytest.raises(BadData, match=re.escape(said)):
        rows_of_text(tmp_path, "n.txt", "good film\n", **fields)
