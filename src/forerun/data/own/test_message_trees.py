"""Of a tree of messages the best-ranked answers are a chat; all others are counted."""

import pytest

from forerun.data.own.canonical import canonical_row
from forerun.data.own.formats import RowLayout, recognise
from forerun.data.own.message_trees import with_trees
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import ChatRow, Turn
from forerun.errors import BadData

PEOPLE = {"p": "prompter", "a": "assistant"}


def message(name, parent, who, rank=None):
    return {"message_id": name, "parent_id": parent, "role": PEOPLE[who], "text": f"text {name}", "rank": rank,
            "lang": "en"}  # fmt: skip


TREE = [
    message("1", None, "p"), message("2", "1", "a", 1), message("3", "1", "a", 0), message("4", "3", "p", 0),
    message("5", "2", "p", 0), message("6", "4", "a"), message("7", "4", "a", 2), message("8", "7", "p", 0),
]  # fmt: skip
NEXT = [message("9", None, "p"), message("10", "9", "a", 0)]
FIELDS = {"messages": "text", "message": "message_id", "parent": "parent_id", "role": "role", "rank": "rank"}


def test_trees_are_recognised_and_asked_about():
    best = recognise([*TREE, *NEXT] * 3)[0]
    assert (best.format, best.fields, best.is_certain) == ("messages", FIELDS, False)
    without = [{key: value for key, value in row.items() if key != "rank"} for row in (*TREE, *NEXT) * 3]
    assert "the first answer of each" in recognise(without)[0].reason
    assert all("parent" not in p.fields for p in recognise([{"text": "a", "role": "assistant", "rank": 1}] * 3))


def test_the_best_ranked_path_up_to_its_last_answer_is_a_chat():
    repairs = Repairs(("lower-ranked",))
    rows = list(with_trees([*TREE, *NEXT], FIELDS, "x", repairs))
    records = [canonical_row(row, RowLayout("messages", FIELDS), "x") for row in rows]
    first = [Turn(who, f"text {n}") for n, who in ((1, "user"), (3, "assistant"), (4, "user"), (7, "assistant"))]
    assert records == [
        ChatRow(tuple(first)), ChatRow((Turn("user", "text 9"), Turn("assistant", "text 10"))),
    ]  # fmt: skip
    assert repairs.counts == {"lower-ranked": 4}
    assert repairs.places["lower-ranked"] == [f"x, row {number}" for number in (2, 5, 6, 8)]


def test_messages_beside_the_path_are_an_error_until_they_may_be_left_out():
    with pytest.raises(BadData, match=r"x, row 2: messages of a tree are those .*lower-ranked"):
        list(with_trees(TREE, FIELDS, "x", Repairs()))


def test_a_question_without_an_answer_and_an_answer_without_its_question_are_counted():
    repairs = Repairs(("lower-ranked",))
    rows = [message("1", None, "p"), message("3", "2", "a", 0), *NEXT]
    assert [row["message_id"] for row in with_trees(rows, FIELDS, "x", repairs)] == ["9"]
    assert repairs.counts == {"lower-ranked": 2}


def test_other_rows_stay_as_they_are():
    assert list(with_trees(TREE, {"text": "text"}, "x", Repairs())) == TREE
    assert list(with_trees([{"text": []}], FIELDS, "x", Repairs())) == [{"text": []}]
