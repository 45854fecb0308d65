from forerun.data.own.tool_calls import call_texts, calls_of, template_calls

FUNCTION = {"name": "weather", "arguments": {"city": "Rome"}}


def test_every_way_of_writing_a_call_is_one_form():
    ways = [
        {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"tool_calls": [FUNCTION]},
        {"tool_calls": '[{"name": "weather", "arguments": {"city": "Rome"}}]'},
        {"function_call": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        {"role": "function_call", "content": '{"name": "weather", "arguments": {"city": "Rome"}}'},
    ]  # fmt: skip
    read = [template_calls(calls_of({"role": "assistant", **way})) for way in ways]
    assert [[call["function"] for call in calls or []] for calls in read] == [[FUNCTION]] * len(ways)
    assert [calls[0].get("id") for calls in read if calls] == ["c1", None, None, None, None]


def test_arguments_that_arrow_adds_are_taken_out_and_those_of_a_text_stay():
    structure = {"name": "weather", "arguments": {"city": "Rome", "day": None}}
    text = {"name": "weather", "arguments": '{"city": "Rome", "day": null}'}
    arguments = [call["function"]["arguments"] for call in template_calls([structure, text]) or []]
    assert arguments == [{"city": "Rome"}, {"city": "Rome", "day": None}]


def test_a_call_without_a_name_or_a_mapping_is_none_but_has_a_text():
    for call in ("now()", {"arguments": {}}, {"name": "a", "arguments": "Rome"}, {"name": "a", "arguments": [1]}, None):
        assert template_calls([call]) is None
    assert template_calls([{"name": "now"}]) == [{"type": "function", "function": {"name": "now", "arguments": {}}}]
    assert call_texts(["now()"]) == ["<tool_call>\nnow()\n</tool_call>"]
