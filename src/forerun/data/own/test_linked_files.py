import gzip
import json

import pytest

from forerun.data.own.formats import recognise
from forerun.data.own.rows import read_own_rows, row_meaning
from forerun.errors import BadData


@pytest.fixture
def write(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return str(tmp_path)

    return write


def test_files_in_two_languages_are_read_line_by_line(write):
    source = write(train_dot_en="a house\na car\n", train_dot_de="ein Haus\nein Auto\n", README="x")
    source = write(test_dot_de_dot_gz="ja", test_dot_en="yes")
    assert list(read_own_rows(source)) == [
        {"de": "ja", "en": "yes", "split": "test"},
        {"de": "ein Haus", "en": "a house", "split": "train"},
        {"de": "ein Auto", "en": "a car", "split": "train"},
    ]
    assert row_meaning(source) == "a line in two languages (4 files)"
    assert recognise(list(read_own_rows(source)))[0].format == "translation"


def test_sources_and_targets_are_two_languages(write):
    source = write(val_dot_source="Long.", val_dot_target="So.")
    assert list(read_own_rows(source)) == [{"source": "Long.", "target": "So.", "split": "val"}]


def test_lines_that_are_not_aligned_are_an_error(write):
    source = write(a_dot_en="one\ntwo\n", a_dot_de="eins\n")
    with pytest.raises(BadData, match=r"a\.en, line 2: .*no such line in a\.de"):
        list(read_own_rows(source))


def test_other_files_are_documents(write):
    assert row_meaning(write(a_dot_en="one", a_dot_de="eins", b_dot_txt="x")) == "a file (3 files)"
    assert row_meaning(write(a_dot_fr="un")) == "a file (4 files)"


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_search_collection_is_pairs(write):
    source = write(
        corpus_dot_jsonl=lines({"_id": "d1", "title": "Cars", "text": "A red car."}, {"_id": "d2", "text": "A dog."}),
        queries_dot_jsonl=lines({"_id": "q1", "text": "What is red?"}, {"_id": "q2", "text": "Who barks?"}),
        qrels__train_dot_tsv="query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n", qrels__test_dot_tsv="q2\t0\td2\t2\n",
    )  # fmt: skip
    assert list(read_own_rows(source)) == [
        {"anchor": "Who barks?", "positive": "A dog.", "split": "test"},
        {"anchor": "What is red?", "positive": "Cars\nA red car.", "split": "train"},
    ]
    assert row_meaning(source) == "a query and a text that answers it (4 files)"
    write(qrels__dev_dot_tsv="q1\td9\t1\n")
    with pytest.raises(BadData, match=r"dev\.tsv, line 1: ids of corpus\.jsonl; found 'd9'"):
        list(read_own_rows(source))
    write(qrels__dev_dot_tsv="q1\td1\t1\nq1 d1 1\n")
    with pytest.raises(BadData, match=r"dev\.tsv, line 2: a query's id, a text's id and a number"):
        list(read_own_rows(source))
