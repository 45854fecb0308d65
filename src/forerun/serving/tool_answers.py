"""Calls of tools in what a model has written → `tool_calls` of OpenAI's API.

Read is `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which Qwen2.5, Qwen3, Hermes, models without a template
of their own and the repair `tool-calls` write. Not covered: other forms (Llama's bare JSON, Mistral's
`[TOOL_CALLS]`, Qwen3-Coder's tags): they stay text, as does what is no call.
"""

import json
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

from forerun.data.own.columns import structure_of
from forerun.data.own.tool_calls import template_calls

BEGIN = "<tool_call>"
CALL = re.compile(rf"\s*{BEGIN}\s*(.*?)\s*</tool_call>", re.DOTALL)


def split_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """The text without its calls, and the calls."""
    calls: list[dict[str, Any]] = []

    def read_call(match: re.Match[str]) -> str:
        read = template_calls([structure_of(match[1])])
        if read is None:
            return match[0]
        function = read[0]["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        call = {"name": function["name"], "arguments": arguments}
        calls.append({"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": call})
        return ""

    left = CALL.sub(read_call, text)
    return left, calls


async def before_calls(pieces: AsyncIterator[str], rest: list[str]) -> AsyncIterator[str]:
    """Pieces up to where a call may begin; what comes from there on is put into `rest`."""
    waiting = ""
    async for piece in pieces:
        waiting += piece
        begin = waiting.find(BEGIN)
        if begin < 0:
            begin = next((at for at in range(max(0, len(waiting) - len(BEGIN)), len(waiting))
                          if BEGIN.startswith(waiting[at:])), len(waiting))  # fmt: skip
        if begin:
            yield waiting[:begin]
        waiting = waiting[begin:]
    rest.append(waiting)


def answer_message(text: str, *, are_tools_told: bool) -> tuple[dict[str, Any], bool]:
    """The assistant's message, and whether it calls tools."""
    content, calls = split_calls(text) if are_tools_told else (text, [])
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message |= {"content": content.strip() or None, "tool_calls": calls}
    return message, bool(calls)
