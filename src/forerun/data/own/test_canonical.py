import json

import pytest

from forerun.data.own.canonical import canonical_row, canonical_rows, checked_row
from forerun.data.own.formats import RowLayout, layout_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import (
    REASONING,
    ChatRow,
    LabelledRow,
    PairRow,
    PreferenceRow,
    TaggedRow,
    TextRow,
    TranslationRow,
    TripletRow,
    Turn,
    UnpairedRow,
    question_texts,
    texts_of,
)
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

HI, HELLO, NO = Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("assistant", "No")
USER, ANSWER, WORSE = ({"role": t.role, "content": t.content} for t in (HI, HELLO, NO))
CASES = {
    "text": ({"text": "x"}, TextRow("x")),
    "labelled": ({"text": "x", "label": 1.0}, LabelledRow("x", None, ("1",))),
    "labelled pair": ({"premise": "x", "hypothesis": "y", "label": "no"}, LabelledRow("x", "y", ("no",))),
    "labelled several": ({"text": "x", "label": ["b", "a"]}, LabelledRow("x", None, ("a", "b"))),
    "tagged": ({"tokens": ["EU", "says"], "ner_tags": ["B-ORG", "O"]}, TaggedRow(("EU", "says"), ("B-ORG", "O"))),
    "tagged cells": ({"tokens": '["EU", "says"]', "tags": "B-ORG O"}, TaggedRow(("EU", "says"), ("B-ORG", "O"))),
    "messages": ({"messages": [USER, ANSWER]}, ChatRow((HI, HELLO))),
    "messages with a system column": (
        {"messages": [USER, ANSWER], "system": "Be kind."},
        ChatRow((Turn("system", "Be kind."), HI, HELLO)),
    ),
    "Gemini's contents": (
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "Be kind."}]},
            "contents": [
                {"role": "user", "parts": [{"text": "H"}, {"text": "i"}]},
                {"role": "model", "parts": [{"text": "Hello"}]},
            ],
        },
        ChatRow((Turn("system", "Be kind."), HI, HELLO)),
    ),
    "message in parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]},
        ChatRow((HI, HELLO)),
    ),
    "conversations": (
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        ChatRow((HI, HELLO)),
    ),
    "unpaired texts": (
        {"prompt": "Hi", "completion": "Hello", "label": 1}, UnpairedRow((HI,), (HELLO,), True, is_plain=True)
    ),
    "unpaired messages": (
        {"prompt": [USER], "completion": [WORSE], "label": False}, UnpairedRow((HI,), (NO,), False)
    ),
    "unpaired chat": (
        {"messages": [USER, ANSWER, USER, WORSE], "kto_tag": "False", "system": "Be kind."},
        UnpairedRow((Turn("system", "Be kind."), HI, HELLO, HI), (NO,), False),
    ),
    "unpaired alpaca": (
        {"instruction": "Add.", "input": "1 2", "output": "3", "history": [["Hi", "Hello"]], "kto_tag": True},
        UnpairedRow((HI, HELLO, Turn("user", "Add.\n\n1 2")), (Turn("assistant", "3"),), True),
    ),
    "alpaca": (
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        ChatRow((Turn("user", "Add.\n\n1 2"), Turn("assistant", "3"))),
    ),
    "alpaca history": (
        {"instruction": "And?", "input": "", "output": "3", "history": [["Hi", "Hello"]]},
        ChatRow((HI, HELLO, Turn("user", "And?"), Turn("assistant", "3"))),
    ),
    "prompt and completion": ({"prompt": "Hi", "completion": "Hello"}, ChatRow((HI, HELLO), is_plain=True)),
    "prompt and completion as messages": ({"prompt": [USER], "completion": [ANSWER]}, ChatRow((HI, HELLO))),
    "translation": ({"translation": {"de": "x", "en": "y"}}, TranslationRow("x", "y")),
    "preference": (
        {"prompt": "Hi", "chosen": "Hello", "rejected": "No"},
        PreferenceRow((HI,), (HELLO,), (NO,), is_plain=True),
    ),
    "preference of messages": (
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [WORSE]},
        PreferenceRow((HI,), (HELLO,), (NO,)),
    ),
    "preference that repeats its prompt": (
        {"prompt": "Hi", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        PreferenceRow((HI,), (HELLO,), (NO,)),
    ),
    "preference without a prompt": (
        {"chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        PreferenceRow((HI,), (HELLO,), (NO,)),
    ),
    "preference of ShareGPT": (
        {"conversations": [{"from": "human", "value": "x"}], "prompt": "Hi", "chosen": {"from": "gpt", "value": "Hello"}, "rejected": {"from": "gpt", "value": "No"}},
        PreferenceRow((HI,), (HELLO,), (NO,)),
    ),
    "preference of spoken texts": (
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
        PreferenceRow((HI,), (HELLO,), (NO,)),
    ),
    "preference of texts": (
        {"chosen": "two and two is four", "rejected": "two and two is five"},
        PreferenceRow((Turn("user", "two and two is "),), (Turn("assistant", "four"),), (Turn("assistant", "five"),), is_plain=True),
    ),
    "pairs": ({"anchor": "x", "positive": "y"}, PairRow("x", "y")),
    "pairs scored": ({"sentence1": "x", "sentence2": "y", "score": "0.5"}, PairRow("x", "y", 0.5)),
    "triplets": ({"anchor": "x", "positive": "y", "negative": "z"}, TripletRow("x", "y", "z")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_row_becomes_its_record(case):
    row, record = CASES[case]
    layout = None
    if case == "preference of ShareGPT":
        layout = RowLayout("preference", {name: name for name in ("prompt", "chosen", "rejected")})
    layout = layout or layout_of(DataSettings(source="x"), [row], "embedding" if case == "pairs scored" else None)
    assert canonical_row(row, layout, "row 1") == record
    assert all(texts_of(record))
    assert set(question_texts(record)) <= set(texts_of(record)) | {" ".join(texts_of(record))}


def test_a_list_in_a_text_column_stays_as_the_file_has_it():
    layout = RowLayout("alpaca", {"instruction": "i", "input": "n", "output": "o"})
    record = canonical_row({"i": "Sort.", "n": "[3, 1]", "o": "[]"}, layout, "row 1")
    assert texts_of(record) == ("Sort.\n\n[3, 1]", "[]")


def test_a_column_of_system_messages_makes_chats_of_all_rows():
    fields = {name: name for name in ("prompt", "completion", "system")}
    row = {"prompt": "Hi", "completion": "Hello", "system": ""}
    assert canonical_row(row, RowLayout("prompt-completion", fields), "row 1") == ChatRow((HI, HELLO))


def test_equal_answers_are_an_error_or_a_counted_repair():
    layout = RowLayout("preference", {name: name for name in ("prompt", "chosen", "rejected")})
    row = {"prompt": "Hi", "chosen": "Hello", "rejected": "Hello"}
    with pytest.raises(BadData, match=r"differ; found equal answers.*data.repair: \[equal-answers\]"):
        checked_row(row, layout, "row 1", Repairs())
    repairs = Repairs(("equal-answers",))
    assert checked_row(row, layout, "row 1", repairs) is None
    assert repairs.counts["equal-answers"] == 1


def test_answers_that_nobody_asked_for_are_an_error_or_left_out_by_count():
    layout, row = RowLayout("messages", {"messages": "m"}), {"m": [ANSWER, ANSWER, USER, ANSWER]}
    with pytest.raises(BadData, match=r"found the answer .* first.*data.repair: \[answers-first\]"):
        canonical_row(row, layout, "row 1")
    repairs = Repairs(("answers-first",))
    record = canonical_row(row, layout, "row 1", repairs)
    assert [turn.role for turn in record.messages] == ["user", "assistant"]
    assert repairs.counts["answers-first"] == 1
    with pytest.raises(BadData, match="at least one message of the assistant"):
        canonical_row({"m": [ANSWER, USER]}, layout, "row 1", repairs)


def test_half_a_surrogate_pair_is_an_error_or_a_counted_repair():
    row, layout = {"t": "half \ud83d"}, RowLayout("text", {"text": "t"})
    with pytest.raises(BadData, match=r"half a surrogate pair.*data.repair: \[encoding\]"):
        canonical_row(row, layout, "row 1")
    assert canonical_row(row, layout, "row 1", Repairs(("encoding",))) == TextRow("half \ufffd")


FAULTS = {
    "tags as NumPy prints them": (RowLayout("tagged", {"words": "w", "tags": "g"}), {"w": ["a", "b"], "g": "['O' 'O']"}, "a list with commas"),
    "a tag that is null": (RowLayout("tagged", {"words": "w", "tags": "g"}), {"w": ["a", "b"], "g": ["O", None]}, "a text in each place"),
    "no text": (RowLayout("text", {"text": "t"}), {"x": "y"}, "column 't'.*The columns are x"),
    "one label that is a list": (RowLayout("labelled", {"text": "t", "label": "l"}), {"t": "x", "l": ["a"]}, "data.labels"),
    "no number": (RowLayout("labelled", {"text": "t", "label": "l"}, "number"), {"t": "x", "l": "high"}, "'l'.*number.*'high'"),
    "fewer tags": (RowLayout("tagged", {"words": "w", "tags": "g"}), {"w": ["a", "b"], "g": ["O"]}, "one tag for each of 2"),
    "no answer": (RowLayout("messages", {"messages": "m"}), {"m": [USER]}, "at least one message of the assistant"),
    "strange role": (RowLayout("messages", {"messages": "m"}), {"m": [{"role": "king", "content": "x"}]}, "'king'"),
    "no text in a message": (RowLayout("messages", {"messages": "m"}), {"m": [USER, {"role": "assistant", "content": None}]}, "pictures are not read"),
    "answers alike": (RowLayout("preference", {"chosen": "c", "rejected": "r"}), {"c": "x", "r": "y"}, "begins as that of rejected"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_names_row_and_column(case):
    layout, row, message = FAULTS[case]
    with pytest.raises(BadData, match=f"row 7: .*{message}"):
        canonical_row(row, layout, "row 7")


LAYOUT = RowLayout("labelled", {"text": "text", "label": "label"})


@pytest.mark.parametrize(
    ("row", "repair"),
    [
        ({"text": " ", "label": "x"}, "empty-texts"),
        ({"text": None, "label": "x"}, "empty-texts"),
        ({"text": "t", "label": ""}, "missing-labels"),
        ({"text": "t"}, "missing-labels"),
        ({"text": "t", "label": " NaN "}, "missing-labels"),
    ],
)
def test_an_empty_part_is_an_error_or_an_allowed_and_counted_repair(row, repair):
    rows = [{"text": "a", "label": "x"}, row, {"text": "b", "label": "y"}]
    with pytest.raises(BadData, match=rf"f.csv, row 2: .*data\.repair: \[{repair}\]"):
        list(canonical_rows(rows, LAYOUT, "f.csv"))
    repairs = Repairs([repair])
    assert [record.text for record in canonical_rows(rows, LAYOUT, "f.csv", repairs)] == ["a", "b"]
    assert repairs.lines() == [f"{repair}: 1 (f.csv, row 2)"]


def test_an_empty_list_of_labels_says_that_none_applies():
    layout = RowLayout("labelled", {"text": "text", "label": "label"}, "several")
    assert list(canonical_rows([{"text": "a", "label": []}], layout, "f")) == [LabelledRow("a", None, ())]
    for value in (None, "", float("nan"), "<NA>"):
        row = {"text": "a", "label": value}
        with pytest.raises(BadData, match=r"missing-labels.*none-apply"):
            list(canonical_rows([row], layout, "f"))
        repairs = Repairs(("none-apply",))
        assert list(canonical_rows([row], layout, "f", repairs)) == [LabelledRow("a", None, ())]
        assert repairs.counts == {"none-apply": 1}
        assert list(canonical_rows([row], layout, "f", Repairs(("none-apply", "missing-labels")))) == []


def test_a_number_to_estimate_is_finite_or_missing():
    layout = RowLayout("labelled", {"text": "text", "label": "label"}, "number")
    with pytest.raises(BadData, match=r"a number; found 'inf'.* set data\.labels to one"):
        list(canonical_rows([{"text": "a", "label": "inf"}], layout, "f"))
    assert list(canonical_rows([{"text": "a", "label": "n/a"}], layout, "f", Repairs(("missing-labels",)))) == []


def test_calls_of_tools_are_written_where_that_is_allowed():
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    row = {"m": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "9"}]}
    layout = RowLayout("messages", {"messages": "m"})
    assert [turn.message for turn in canonical_row(row, layout, "row 1").messages[1:]] == [
        {
            "role": "assistant", "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "content": "9"},
    ]  # fmt: skip
    repairs = Repairs(("tool-calls",))
    record = canonical_row(row, layout, "row 1", repairs)
    assert record.messages[1].content == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    assert repairs.counts["tool-calls"] == 1


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_of_an_answer_is_kept_by_all_its_names(name):
    """Templates differ in which they read: Qwen3's `reasoning_content`, gpt-oss's `thinking`."""
    row = {"m": [USER, {"role": "assistant", "content": "Nine.", name: "Three times three."}]}
    turn = canonical_row(row, RowLayout("messages", {"messages": "m"}), "row 1").messages[1]
    assert turn.message == {"role": "assistant", "content": "Nine.", **dict.fromkeys(REASONING, "Three times three.")}
    assert (turn.content, turn.text) == ("Nine.", "Three times three.\nNine.")


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'


@pytest.mark.parametrize(
    ("value", "calls", "are_broken"),
    [(CALL, [CALL], False), (f"[{CALL}, {CALL}]", [CALL, CALL], False), ("now()", ["now()"], True)],
)
def test_calls_of_sharegpt_files_are_calls_too(value, calls, are_broken):
    turns = [{"from": "human", "value": "hi"}, {"from": "function_call", "value": value}]
    row = {"c": [*turns, {"from": "observation", "value": "9"}], "tools": "[]"}
    layout = RowLayout("conversations", {"conversations": "c"})
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    if are_broken:
        with pytest.raises(BadData, match=r"a mapping; found \['now\(\)'\]. .* allow data.repair: \[broken-tools\]"):
            canonical_row(row, layout, "row 1")
        assert canonical_row(row, layout, "row 1", Repairs(("broken-tools",))).messages[1].content == text
    else:
        (turn,) = canonical_row(row, layout, "row 1").messages[1:2]
        assert [call["function"] for call in turn.calls] == [json.loads(call) for call in calls]
        assert turn.text == "\n".join(calls)
    repairs = Repairs(("tool-calls",))
    turn = canonical_row(row, layout, "row 1", repairs).messages[1]
    assert turn.content == text
    assert repairs.counts == {"tool-calls": 1}


def test_tools_of_a_row_are_those_of_its_column():
    schema = {"name": "weather", "parameters": {"type": "object"}}
    wrapped = {"type": "function", "function": schema}
    layout = RowLayout("messages", {"messages": "m", "tools": "t"})
    for cell in ([wrapped], json.dumps([wrapped]), [schema], [{**wrapped, "strict": None}]):
        assert json.loads(canonical_row({"m": [USER, ANSWER], "t": cell}, layout, "row 1").tools) == [wrapped]
    for cell in (None, "", [], "[]"):
        assert not canonical_row({"m": [USER, ANSWER], "t": cell}, layout, "row 1").tools


@pytest.mark.parametrize("cell", [{"name": "weather"}, "[{", '["weather"]', [{"description": "no name"}], 3])
def test_tools_that_are_no_list_of_schemas_are_an_error_or_a_counted_repair(cell):
    layout, row = RowLayout("messages", {"messages": "m", "tools": "t"}), {"m": [USER, ANSWER], "t": cell}
    rule = r"row 1: the column 't' \(tools\) holds a list of JSON schemas with a name each; found .*\[broken-tools\]"
    with pytest.raises(BadData, match=rule):
        canonical_row(row, layout, "row 1")
    repairs = Repairs(("broken-tools",))
    assert canonical_row(row, layout, "row 1", repairs) == ChatRow((HI, HELLO))
    assert repairs.counts == {"broken-tools": 1}


def test_a_prompt_with_tools_goes_through_the_chat_template():
    layout = RowLayout("prompt-completion", {"prompt": "p", "completion": "c", "tools": "t"})
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert not canonical_row({"p": "Hi", "c": "Hello", "t": tools}, layout, "row 1").is_plain
    assert canonical_row({"p": "Hi", "c": "Hello", "t": []}, layout, "row 1").is_plain


def test_a_preference_has_its_prompt_in_a_column_or_at_the_start_of_both_answers():
    """As LLaMA-Factory has them: a list of turns, and two answers of a turn each."""
    row = {
        "conversations": [{"from": "human", "value": "Hi"}],
        "chosen": {"from": "gpt", "value": "Hello"}, "rejected": {"from": "gpt", "value": "No"},
    }  # fmt: skip
    fields = {"chosen": "chosen", "rejected": "rejected"}
    record = canonical_row(row, RowLayout("preference", {**fields, "prompt": "conversations"}), "row 1")
    assert record == PreferenceRow((HI,), (HELLO,), (NO,))
    with pytest.raises(BadData, match=r"begin as those of rejected, or a column of prompts in data\.fields\.prompt"):
        canonical_row(row, RowLayout("preference", fields), "row 1")


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"training": False}])
def test_an_answer_may_say_that_it_is_not_learned(mark):
    messages = [{"role": "user", "content": "a", **mark}, {"role": "assistant", "content": "b", **mark}]
    row = canonical_row({"messages": messages}, RowLayout("messages", {"messages": "messages"}), "x")
    assert [turn.is_learned for turn in row.messages] == [True, False]
    messages[1] |= {"weight": 1, "train": True, "training": True}
    row = canonical_row({"messages": messages}, RowLayout("messages", {"messages": "messages"}), "x")
    assert all(turn.is_learned and not turn.more for turn in row.messages)
