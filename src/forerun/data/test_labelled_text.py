import pytest

from forerun.data.labelled_text import Fields, corpus_of, shipped_corpus, with_folds
from forerun.errors import BadData


def rows(number=400, **more):
    return [{"text": f"text number {n}", "label": "a" if n % 3 else "b", **more} for n in range(number)]


def test_rows_without_a_split_are_split_by_their_text_alone():
    one = corpus_of(rows(), Fields(), "t", is_multi_label=False)
    other = corpus_of(rows()[::-1], Fields(), "t", is_multi_label=False)
    assert one.split_hash == other.split_hash
    shares = [len(one.part(part)) / 400 for part in ("train", "selection", "threshold", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.04)


def test_a_tables_own_splits_are_kept_and_validation_is_halved():
    table = rows(300, split="train") + [{**r, "text": r["text"] + " v", "split": "validation"} for r in rows(100)]
    table += [{**r, "text": r["text"] + " t", "split": "test"} for r in rows(50)]
    corpus = corpus_of(table, Fields(), "t", is_multi_label=False)
    assert (len(corpus.part("train")), len(corpus.part("test"))) == (300, 50)
    assert len(corpus.part("selection")) + len(corpus.part("threshold")) == 100


def test_what_a_table_lacks_is_taken_from_training():
    corpus = corpus_of(rows(split="train"), Fields(), "t", is_multi_label=False)
    assert all(corpus.part(part) for part in ("train", "selection", "threshold", "test"))


def test_a_judged_text_is_not_trained_on():
    table = rows(300, split="train") + rows(100, split="val") + [{"text": "fresh text", "label": "a", "split": "test"}]
    corpus = corpus_of(table, Fields(), "t", is_multi_label=False)
    train = {row.key for row in corpus.part("train")}
    assert not train & {row.key for part in ("selection", "threshold", "test") for row in corpus.part(part)}
    assert corpus.repeated == 100


def test_folds_are_fixed_and_cover_every_row_once():
    corpus = corpus_of(rows(), Fields(), "t", is_multi_label=False)
    pool = {row.key for part in ("train", "selection") for row in corpus.part(part)}
    folds = [with_folds(corpus, 4, fold) for fold in range(4)]
    selections = [{row.key for row in fold.part("selection")} for fold in folds]
    assert set().union(*selections) == pool
    assert sum(len(fold) for fold in selections) == len(pool)
    assert all(fold.part("test") == corpus.part("test") for fold in folds)


def test_several_labels_a_row_as_list_or_text():
    as_lists = [{"text": f"t {n}", "label": ["x", "y"] if n % 2 else []} for n in range(200)]
    as_text = [{"text": f"t {n}", "label": "x|y" if n % 2 else ""} for n in range(200)]
    one, other = (corpus_of(r, Fields(), "t", is_multi_label=True) for r in (as_lists, as_text))
    assert one.label_names == ("x", "y")
    assert one.rows == other.rows


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "t", "label": ["a"]}, "multi-label"),
        ({"text": "t"}, "label_field"),
        ({"label": "a"}, "text_field"),
        ({"text": "t", "label": "a", "split": "somewhere"}, "split"),
    ],
)
def test_bad_rows_are_named(row, words):
    with pytest.raises(BadData, match=words):
        corpus_of([*rows(), row], Fields(), "t", is_multi_label=False)


def test_one_label_is_no_task():
    with pytest.raises(BadData, match="two labels"):
        corpus_of([{"text": str(n), "label": "a"} for n in range(99)], Fields(), "t", is_multi_label=False)


def test_the_shipped_rows():
    corpus = shipped_corpus("sentence_polarity")
    assert corpus.label_names == ("negative", "positive")
    assert [len(corpus.part(p)) for p in ("train", "selection", "threshold", "test")] == [8636, 494, 508, 1024]
