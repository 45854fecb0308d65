import pytest

from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows, row_meaning
from forerun.data.own.tagged_lines import looks_tagged
from forerun.errors import BadData

TEXT = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n"


def test_sentences_of_words_and_tags(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(TEXT)
    assert list(read_own_rows(str(path))) == [
        {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}, {"tokens": ["Peter"], "ner_tags": ["B-PER"]},
    ]  # fmt: skip
    assert row_meaning(str(path)) == "a sentence of words with tags"


def test_a_word_without_a_tag_is_an_error_or_its_sentence_is_left_out(tmp_path):
    path = tmp_path / "train.bio"
    path.write_text(f"{TEXT}alone\n\nYes\tO\n")
    with pytest.raises(BadData, match=r"line 7: a word and its tag; found 'alone'"):
        list(read_own_rows(str(path)))
    repairs = Repairs(("ragged-rows",))
    assert [row["tokens"][0] for row in read_own_rows(str(path), repairs=repairs)] == ["EU", "Yes"]
    assert repairs.counts["ragged-rows"] == 1


def test_text_of_tags_is_told_from_text():
    assert looks_tagged([TEXT.partition("\n\n")[2]])
    assert not looks_tagged(["A text of some words.\nOf two lines."])


def test_a_table_of_tabs_with_words_tags_and_blank_lines_is_sentences(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("breast\tB-Disease\ncancer\tI-Disease\n\nNone\tO\n")
    assert [row["tokens"] for row in read_own_rows(str(path))] == [["breast", "cancer"], ["None"]]
    assert row_meaning(str(path)) == "a sentence of words with tags"
    (tmp_path / "test.tsv").write_text("None\tO\n\nNone\tO\n")
    assert [row["split"] for row in read_own_rows(str(tmp_path))] == ["test", "test", "train", "train"]
    path.write_text("Word\tTag\nbreast\tB-Disease\ncancer\tI-Disease\n")
    assert list(read_own_rows(str(path)))[0] == {"Word": "breast", "Tag": "B-Disease"}


def test_words_without_tags_are_sentences_to_be_answered(tmp_path):
    path = tmp_path / "new.conll"
    path.write_text("-DOCSTART- -X- O\n\nPeter\ncame\n\nYes\n")
    assert list(read_own_rows(str(path))) == [{"tokens": ["Peter", "came"]}, {"tokens": ["Yes"]}]
