import json
import re

import pytest

from forerun.data.own.repairs import Repairs
from forerun.errors import BadData
from forerun.own.facts import TaskFacts
from forerun.serving.questions import question_of, require_columns

CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}
ROW = {"messages": [{"role": "user", "content": "Is it warm?"}, CALL, {"role": "tool", "content": "30"}]}


def facts(**fields):
    return TaskFacts(workload="causal-lm", sequence_length=64, pad_id=0, **fields)


def test_a_chat_is_asked_up_to_its_last_question_with_calls_of_tools_and_their_descriptions():
    chat = facts(format="messages", fields={"messages": "messages"}, is_chat=True)
    question = question_of(ROW, chat, "row 1", Repairs())
    assert [turn.role for turn in question.messages] == ["user", "assistant", "tool"]
    assert question.messages[1].calls == [{"type": "function", "function": {"name": "weather", "arguments": {}}}]
    assert "weather" in question_of(ROW, chat, "row 1", Repairs(("tool-calls",))).messages[1].content
    tools = [{"type": "function", "function": {"name": "weather"}}]
    told = facts(format="messages", fields={"messages": "messages", "tools": "t"}, is_chat=True)
    assert json.loads(question_of({**ROW, "t": tools}, told, "row 1", Repairs()).tools) == tools


def test_a_prompt_is_asked_in_the_form_that_rows_were_trained_in():
    asked = {"fields": {"prompt": "prompt", "completion": "completion"}, "format": "prompt-completion"}
    assert question_of({"prompt": "Once "}, facts(**asked), "row 1", Repairs()).text == "Once "
    assert (
        question_of({"prompt": "Once "}, facts(**asked, is_chat=True), "row 1", Repairs()).messages[0].content
        == "Once "
    )
    fields = {"instruction": "instruction", "input": "input", "output": "output"}
    rewriting = TaskFacts(workload="seq2seq-lm", sequence_length=64, pad_id=0, format="alpaca", fields=fields)
    assert question_of({"instruction": "Add.", "input": "1 2"}, rewriting, "row 1", Repairs()).text == "Add.\n\n1 2"


def test_rows_of_columns_of_yes_and_no_are_asked_without_them():
    label = {"text": "body", "label": "rude + long"}
    labelled = facts(format="labelled", fields=label, label_kind="several", label_names=("long", "rude"))
    assert question_of({"body": "some words"}, labelled, "row 1", Repairs()).text == "some words"


def test_a_row_with_an_empty_text_is_no_question_where_that_is_allowed():
    labelled = facts(format="labelled", fields={"text": "body", "label": "y"}, label_kind="one", label_names=("a", "b"))
    with pytest.raises(BadData, match=r"row 1: the column 'body' \(text\) holds text; found none"):
        question_of({"body": " "}, labelled, "row 1", Repairs())
    repairs = Repairs(("empty-texts",))
    assert question_of({"body": " "}, labelled, "row 1", repairs) is None
    assert repairs.counts == {"empty-texts": 1}


def test_a_text_with_places_is_asked_by_its_words():
    spans = facts(format="spans", fields={"text": "data.text", "spans": "annotations"}, label_names=("O", "B-LOC"))
    asked = {"data": {"text": "To Paris."}}
    question = question_of(asked, spans, "row 1", Repairs())
    assert (question.text, question.words) == ("To Paris.", ("To", "Paris", "."))
    assert question_of({**asked, "annotations": [[0, 99, "X"]]}, spans, "row 1", Repairs()) == question


def test_a_file_without_a_column_of_the_training_rows_is_told_its_own_columns():
    labelled = facts(format="labelled", fields={"text": "body", "pair": "title", "label": "rude + long"})
    with pytest.raises(BadData, match=re.escape("new.csv: a column 'body', which the model reads (text), as in train")):
        require_columns([{"id": 1, "review": "words"}], labelled, "new.csv")
    require_columns([{"id": 1}, {"body": "words"}], labelled, "new.csv")
    inner = facts(format="spans", fields={"text": "data.text", "spans": "annotations"})
    require_columns([{"data": {"text": "words"}}], inner, "new.json")
    with pytest.raises(BadData, match=re.escape("found 'text'. Rename the column")):
        require_columns([{"text": "words"}], inner, "new.json")
