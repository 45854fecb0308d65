"""Descriptions of tools that stand beside chats (`tools` of TRL, axolotl and LLaMA-Factory) are not read, and that is
said. Calls of tools within a chat are errors until `data.repair: [tool-calls]`; a chat may have none.
"""

from collections.abc import Sequence

from forerun.data.own.columns import Row, is_empty, structure_of
from forerun.data.own.formats import RowLayout

TOOL_COLUMNS = ("tools", "functions", "available_tools", "tool_definitions")
FORMATS = ("messages", "conversations", "prompt-completion", "preference", "alpaca")
REMEDY = (
    "Nothing to do where the answers need none; else write them into a system message, and add the same when you ask."
)


def unread_tools(layout: RowLayout, rows: Sequence[Row]) -> str:
    """A sentence on descriptions of tools in a sample of rows; empty where there are none."""
    for name in dict.fromkeys(name for row in rows for name in row):
        if name.lower() not in TOOL_COLUMNS or name in layout.fields.values() or layout.format not in FORMATS:
            continue
        count = sum(not is_empty(row.get(name)) and bool(structure_of(row.get(name))) for row in rows)
        if count:
            return (
                f"the column {name!r} describes tools in {count:,} of the first {len(rows):,} rows, and is not read: "
                f"the model does not learn which tools it has."
            )
    return ""
