"""Calls are read where they are whole, and all else stays text."""

import json

import pytest

from forerun.data.test_call_grammar import FORMS, TOOLS, called, chat_of, written
from forerun.data.written_calls import split_written


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_is_no_whole_call_stays_text(form):
    chat = chat_of(form)
    text = written(chat, called({"city": "Rome"}))
    for end in range(len(text)):
        left, got = split_written(text[:end], chat.call_grammar, TOOLS)
        assert got in ([], [("get-weather.v2", {"city": "Rome"})])
        assert got or left == text[:end]
    assert split_written("A list [1, 2], {a: b} and (c=d).", chat.call_grammar)[1] == []


def test_several_bare_objects_are_several_calls():
    grammar = chat_of(FORMS["Llama 3"]).call_grammar
    one = json.dumps({"name": "f", "parameters": {"a": 1}})
    assert split_written(f"{one}; {one}", grammar) == ("", [("f", {"a": 1})] * 2)
    assert split_written(f"<|python_tag|>{one}", grammar)[1] == [("f", {"a": 1})]
    assert split_written(f"So: {one}", grammar)[1] == []


def test_values_without_quotes_are_what_the_tool_says_they_are():
    grammar = chat_of(FORMS["Qwen3-Coder"]).call_grammar
    text = "<function=f><parameter=a>3</parameter><parameter=b>3</parameter><parameter=c>no</parameter></function>"
    tools = [
        {"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}
    ]
    assert split_written(text, grammar, tools) == ("", [("f", {"a": "3", "b": 3, "c": "no"})])
    assert split_written("<function=f></function>", grammar) == ("", [("f", {})])
