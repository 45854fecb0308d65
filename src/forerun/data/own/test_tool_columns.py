import json

import pytest

from forerun.data.own.formats import RowLayout, layout_of
from forerun.data.own.inspection import inspect
from forerun.data.own.tool_columns import unread_tools
from forerun.settings.schema import DataSettings

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CHAT = [{"role": "user", "content": "Is it raining?"}, {"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("name", ["tools", "Functions"])
@pytest.mark.parametrize("value", [TOOLS, json.dumps(TOOLS)])
def test_tools_beside_chats_without_a_call_are_named(tmp_path, name, value):
    rows = [{"messages": [{**CHAT[0], "content": f"Is it {n}?"}, CHAT[1]], name: value} for n in range(30)]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(source=str(source))
    layout = layout_of(data, rows)
    assert f"the column {name!r} describes tools in 30 of the first 30 rows" in unread_tools(layout, rows)
    (finding,) = [each for each in inspect(data, layout, rows).findings if each.kind == "tools not read"]
    assert finding.weight == "warning"


@pytest.mark.parametrize("value", [None, "", [], "[]"])
def test_no_tools_are_nothing_to_say(value):
    layout = RowLayout("messages", {"messages": "messages"})
    assert not unread_tools(layout, [{"messages": CHAT, "tools": value}])
    assert not unread_tools(RowLayout("labelled", {"text": "text", "label": "l"}), [{"text": "a", "tools": TOOLS}])
