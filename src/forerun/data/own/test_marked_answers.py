"""Answers that a column marks as better, and passages that one marks as right, stand where they belong."""

import pytest

from forerun.data.own.canonical import canonical_row
from forerun.data.own.formats import layout_of, recognise
from forerun.data.own.listed_texts import each_text
from forerun.data.own.marked_answers import UNSELECTED, with_marks
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import TripletRow
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

PASSAGES = {"is_selected": [0, 1, 0], "passage_text": ["Grass.", "It is red.", "Rain."], "url": ["u", "v", "w"]}
MARCO = {"query": "What colour?", "query_id": 7, "answers": ["Red."], "passages": PASSAGES}
SAFE = {"prompt": "Hi", "response_0": "Hello", "response_1": "Go", "better_response_id": 0, "safer_response_id": 1}


def marked(rows, fields, repairs=None):
    return list(each_text(with_marks(rows, fields, "x", repairs or Repairs()), fields))


def test_marked_passages_are_positives_and_the_others_negatives():
    best = recognise([MARCO] * 3)[0]
    assert (best.format, best.workload, best.is_certain) == ("triplets", "embedding", False)
    rows = marked([MARCO], best.fields)
    assert [row[UNSELECTED] for row in rows] == ["Grass.", "Rain."]
    data = DataSettings(source="x", format="triplets", fields=dict(best.fields))
    records = [canonical_row(row, layout_of(data, rows), "x") for row in rows]
    assert records == [TripletRow("What colour?", "It is red.", text) for text in ("Grass.", "Rain.")]


def test_a_query_without_a_marked_passage_is_left_out_and_counted():
    fields = recognise([MARCO] * 3)[0].fields
    none = {**MARCO, "passages": {**PASSAGES, "is_selected": [0, 0, 0]}}
    uneven = {**MARCO, "passages": {**PASSAGES, "is_selected": [1]}}
    with pytest.raises(BadData, match=r"x, row 2: .*'passages.is_selected' \(selected\) marks a text.*none marked"):
        marked([MARCO, none], fields)
    repairs = Repairs(("empty-texts",))
    assert len(marked([MARCO, none, uneven], fields, repairs)) == 2
    assert repairs.counts == {"empty-texts": 2}


def test_the_better_answer_is_the_chosen_one():
    best, other = recognise([SAFE, {**SAFE, "better_response_id": 1}] * 2)[:2]
    assert [p.fields["better"] for p in (best, other)] == ["better_response_id", "safer_response_id"]
    assert (best.format, best.is_certain) == ("preference", False)
    for proposal, better, worse in ((best, "Hello", "Go"), (other, "Go", "Hello")):
        (row,) = marked([SAFE], proposal.fields)
        assert (row["response_0"], row["response_1"]) == (better, worse)
    words = {"prompt": "Hi", "response_a": "Hello", "response_b": "Go", "winner": "model_b"}
    (row,) = marked([words], recognise([words] * 3)[0].fields)
    assert row["response_a"] == "Go"


def test_a_draw_is_left_out_and_counted():
    fields = recognise([SAFE] * 3)[0].fields
    with pytest.raises(BadData, match="says which of two answers is better, 0 or 1; found 'tie'"):
        marked([{**SAFE, "better_response_id": "tie"}], fields)
    repairs = Repairs(("equal-answers",))
    assert marked([{**SAFE, "better_response_id": "tie"}, SAFE], fields, repairs) == [SAFE]
    assert repairs.counts == {"equal-answers": 1}


def test_rows_without_marks_stay_as_they_are():
    for fields in ({"text": "query"}, recognise([SAFE] * 3)[0].fields):
        assert marked([{"prompt": "Hi"}], fields) == [{"prompt": "Hi"}]
