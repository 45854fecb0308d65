"""Descriptions of tools that stand beside chats (`tools` of TRL, axolotl and LLaMA-Factory): for the chat template.

A row has a list of JSON schemas, or the text of such a list. A schema without OpenAI's `{"type": "function", …}` around
it, as LLaMA-Factory's files have it, gets that. Arrow gives all schemas the keys of each, with nothing in them: such
keys are taken out of lists, as TRL does, and stay where a text says them.

Not covered: `seq2seq-lm`, which has no chat template; a second column of tools. Both are said (`unread_tools`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.data.own.columns import Row, are_tools, is_empty, structure_of
from forerun.data.own.format_parts import ALIASES
from forerun.data.own.formats import RowLayout

FORMATS = ("messages", "conversations", "prompt-completion", "preference", "unpaired-preference", "alpaca")
REMEDY = (
    "Nothing to do where the answers need none; else write them into a system message, and add the same when you ask."
)


def tools_text(value: Any) -> str | None:
    """JSON of the tools that a cell describes; empty where it describes none, None where it is no list of schemas."""
    tools = structure_of(value)
    if is_empty(tools):
        return ""
    if not are_tools(tools):
        return None
    if not isinstance(value, str):
        tools = without_nothing(tools)
    return json.dumps([_wrapped(tool) for tool in tools], ensure_ascii=False)


def without_nothing(value: Any) -> Any:
    """A structure without keys whose value is None."""
    if isinstance(value, Mapping):
        return {key: without_nothing(inner) for key, inner in value.items() if inner is not None}
    return [without_nothing(inner) for inner in value] if isinstance(value, list | tuple) else value


def _wrapped(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool if "function" in tool else {"type": "function", "function": tool}


def unread_tools(layout: RowLayout, rows: Sequence[Row]) -> str:
    """A sentence on descriptions of tools in a sample of rows that are not read; empty where there are none."""
    for name in dict.fromkeys(name for row in rows for name in row):
        if name.lower() not in ALIASES["tools"] or name in layout.fields.values() or layout.format not in FORMATS:
            continue
        count = sum(not is_empty(row.get(name)) and bool(structure_of(row.get(name))) for row in rows)
        if count:
            return (
                f"the column {name!r} describes tools in {count:,} of the first {len(rows):,} rows, and is not read: "
                f"the model does not learn which tools it has."
            )
    return ""
