"""Calls of tools in the messages of a chat: as chat templates read them, or as text.

OpenAI's `tool_calls`, its older `function_call`, and turns of `function_call` in ShareGPT's files become one form: a
list of `{"type": "function", "function": {"name": …, "arguments": {…}}}`, arguments as a mapping, as transformers'
templates want them.
"""

import json
from collections.abc import Mapping
from typing import Any

from forerun.data.own.columns import is_function, structure_of
from forerun.data.own.tool_columns import without_nothing

CALLER = "function_call"
"""Who speaks where ShareGPT files call a tool: the text is the call as JSON, or a list of them."""


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """Calls of tools in a message of the assistant, as the file has them."""
    calls = structure_of(message.get("tool_calls")) or ()
    calls = list(calls) if isinstance(calls, list | tuple) else [calls]
    calls += [message["function_call"]] if isinstance(message.get("function_call"), Mapping) else []
    if is_caller(message):
        value = structure_of(message.get("content", message.get("value")))
        calls += value if isinstance(value, list) else [value] if value else []
    return calls


def is_caller(message: Mapping[str, Any]) -> bool:
    """Whether the whole message is calls."""
    return str(message.get("role", message.get("from"))).lower() == CALLER


def template_calls(calls: list[Any]) -> list[dict[str, Any]] | None:
    """Calls as chat templates read them; None where one has no name, or arguments that are no mapping."""
    read = [_template_call(call) for call in calls]
    return None if any(call is None for call in read) else [call for call in read if call is not None]


def _template_call(call: Any) -> dict[str, Any] | None:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not is_function(function):
        return None
    arguments = function.get("arguments")
    mapping = {} if arguments in (None, "") else structure_of(arguments)
    if not isinstance(mapping, Mapping):
        return None
    mapping = mapping if isinstance(arguments, str) else without_nothing(mapping)
    name = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**name, "type": "function", "function": {"name": function["name"], "arguments": mapping}}


def call_texts(calls: list[Any]) -> list[str]:
    """Calls as the text that the chat template of Qwen2.5 makes of them."""
    functions = (call.get("function", call) if isinstance(call, Mapping) else call for call in calls)
    return [f"<tool_call>\n{_call_text(function)}\n</tool_call>" for function in functions]


def _call_text(function: Any) -> str:
    if not isinstance(function, Mapping):
        return str(function)
    content = {"name": function.get("name"), "arguments": structure_of(function.get("arguments"))}
    return json.dumps(content, ensure_ascii=False)
