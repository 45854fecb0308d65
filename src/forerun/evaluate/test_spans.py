import pytest

from forerun.evaluate.spans import OUTSIDE, count_spans, f1_difference, outside_of, scores_by_type, spans_of

CASES = [
    ("B-A I-A O B-B", [(0, 2, "A"), (3, 4, "B")]),
    ("B-A B-A I-A", [(0, 1, "A"), (1, 3, "A")]),
    ("O I-A I-A", [(1, 3, "A")]),  # I- after O begins a span
    ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),
    ("B-A I-A E-A S-B O", [(0, 3, "A"), (3, 4, "B")]),
    ("NOUN VERB O NOUN", [(0, 1, "NOUN"), (1, 2, "VERB"), (3, 4, "NOUN")]),
    ("O O", []),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_spans(case):
    tags, spans = case
    assert spans_of(tags.split()) == spans


def test_a_span_counts_only_whole():
    truth, answers = [["B-A", "I-A", "O"], ["B-B", "O", "O"]], [["B-A", "O", "O"], ["B-B", "O", "B-A"]]
    counts = count_spans(answers, truth)
    assert counts.scores == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": 2 / 5})
    by_type = scores_by_type(answers, truth)
    assert by_type["B"]["f1"] == 1
    assert by_type["A"]["f1"] == 0
    low, high = counts.interval()
    assert 0 <= low <= counts.scores["f1"] <= high <= 1


def test_of_numbers_without_names_the_most_frequent_is_outside():
    truth = [["0", "3", "4", "0"], ["0", "0", "5", "0"]]
    outside = outside_of(["0", "3", "4", "5"], (tag for tags in truth for tag in tags))
    assert outside == "0"
    assert spans_of(truth[0], outside) == [(1, 2, "3"), (2, 3, "4")]
    assert count_spans([["0"] * 4] * 2, truth, outside).scores["f1"] == 0
    assert set(scores_by_type(truth, truth, outside)) == {"3", "4", "5"}
    assert outside_of(["0", "O"], []) == OUTSIDE


def test_the_difference_of_two_taggers_is_drawn_over_the_same_sentences():
    truth = [["B-A", "O", "B-C"] for _ in range(40)]
    good = [row if n % 4 else ["O", "O", "O"] for n, row in enumerate(truth)]
    worse = [row if n % 4 != 1 else ["O", "O", "O"] for n, row in enumerate(good)]
    first, second = (count_spans(tags, truth) for tags in (good, [["B-A", "O", "O"]] * 40))
    low, high = f1_difference(first, second)
    assert low < first.scores["f1"] - second.scores["f1"] < high
    assert f1_difference(first, first) == (0.0, 0.0)
    assert f1_difference(first, count_spans(worse, truth))[0] >= 0
