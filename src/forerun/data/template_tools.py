"""Does a chat template write the tools that may be called, and the calls? Tried with one of each.

Templates disagree on a call's arguments: most want a mapping and write it as JSON themselves (Qwen, Llama, Mistral),
some put a text there (DeepSeek), some write each argument apart (Qwen3-Coder). What is tried first is the mapping.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from forerun.data.own.row_kinds import REASONING

NAME, CALLED, ARGUMENT, VALUE = "probe_name", "probe_called", "probe_argument", "probe_value"
RESULT, THOUGHT = "probe_result", "probe_thought"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Nothing.",
        "parameters": {
            "type": "object",
            "properties": {"nothing": {"type": "string", "description": "Nothing."}},
            "required": ["nothing"],
        },
    },
}
CallForm = Literal["mapping", "text"]
"""How a template wants the arguments of a call."""
FORMS: tuple[CallForm, ...] = ("mapping", "text")
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str | None]
"""What a template makes of messages and tools; None where it refuses them."""
QUESTION = {"role": "user", "content": "Nothing?"}


def reads_tools(render: Render) -> bool:
    """Whether the template writes what tools there are: the name of one must come out."""
    return NAME in (render([QUESTION], [TOOL]) or "")


def reads_reasoning(render: Render) -> bool:
    """Whether the template writes the reasoning of the last answer, where that is a field of its own."""
    answer = {"role": "assistant", "content": "Nothing.", **dict.fromkeys(REASONING, THOUGHT)}
    return THOUGHT in (render([QUESTION, answer], []) or "")


def call_form(render: Render) -> CallForm | None:
    """How the template wants calls; None where it leaves them out."""
    for form in FORMS:
        text = render([QUESTION, *in_form([answer_of(call_of())], form)], [TOOL]) or ""
        is_whole = all(part in text for part in (CALLED, ARGUMENT, VALUE))
        if is_whole and f"'{ARGUMENT}'" not in text:  # so Python prints a mapping, where a text was wanted
            return form
    return None


def call_of(arguments: Mapping[str, Any] | None = None, identity: str = "probecall") -> dict[str, Any]:
    """A call of ours; nine letters, as Mistral's templates want an `id`."""
    function = {"name": CALLED, "arguments": {ARGUMENT: VALUE} if arguments is None else arguments}
    return {"id": identity, "type": "function", "function": function}


def answer_of(*calls: Mapping[str, Any], content: str = "") -> dict[str, Any]:
    """An answer that makes them."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose texts are lists of parts, as templates of models that see want them."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def in_form(messages: Sequence[Mapping[str, Any]], form: CallForm | None) -> list[Mapping[str, Any]]:
    """Messages whose calls have their arguments in that form; they come as mappings."""
    return [_in_text(message) if form == "text" and "tool_calls" in message else message for message in messages]


def _in_text(message: Mapping[str, Any]) -> dict[str, Any]:
    def call(one: Mapping[str, Any]) -> dict[str, Any]:
        function = one["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**one, "function": {**function, "arguments": text}}

    return {**message, "tool_calls": [call(one) for one in message["tool_calls"]]}
