import json

import pytest

from forerun.data.own.canonical import canonical_row
from forerun.data.own.formats import RowLayout, layout_of
from forerun.data.own.inspection import inspect
from forerun.data.own.tool_columns import tools_text, unread_tools
from forerun.settings.schema import DataSettings

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CHAT = [{"role": "user", "content": "Is it raining?"}, {"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("name", ["tools", "Functions"])
@pytest.mark.parametrize("value", [TOOLS, json.dumps(TOOLS)])
def test_a_column_of_tools_is_read_by_its_name_and_values(name, value):
    rows = [{"messages": [{**CHAT[0], "content": f"Is it {n}?"}, CHAT[1]], name: value} for n in range(30)]
    layout = layout_of(DataSettings(source="x"), rows)
    assert layout.fields == {"messages": "messages", "tools": name}
    assert json.loads(canonical_row(rows[0], layout, "row 1").tools) == TOOLS
    assert not unread_tools(layout, rows)


def test_words_in_a_column_called_tools_are_none():
    rows = [{"messages": [{**CHAT[0], "content": f"Is it {n}?"}, CHAT[1]], "tools": "a hammer"} for n in range(30)]
    assert layout_of(DataSettings(source="x"), rows).fields == {"messages": "messages"}


def test_tools_of_rows_without_a_chat_template_are_named(tmp_path):
    """`seq2seq-lm` has none."""
    rows = [{"prompt": f"Is it {n}?", "completion": f"No {n}.", "tools": TOOLS} for n in range(30)]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(source=str(source))
    layout = layout_of(data, rows, "seq2seq-lm")
    assert "the column 'tools' describes tools in 30 of the first 30 rows" in unread_tools(layout, rows)
    (finding,) = [each for each in inspect(data, layout, rows).findings if each.kind == "tools not read"]
    assert finding.weight == "warning"


@pytest.mark.parametrize("value", [None, "", [], "[]"])
def test_no_tools_are_nothing_to_say(value):
    layout = RowLayout("messages", {"messages": "messages"})
    assert not unread_tools(layout, [{"messages": CHAT, "tools": value}])
    assert not unread_tools(RowLayout("labelled", {"text": "text", "label": "l"}), [{"text": "a", "tools": TOOLS}])


def test_keys_that_arrow_adds_are_taken_out_of_lists_and_stay_in_texts():
    tools = [{"type": "function", "function": {"name": "a", "parameters": {"x": {"type": "string"}, "y": None}}}]
    assert "null" not in tools_text(tools)
    assert json.loads(tools_text(json.dumps(tools))) == tools
