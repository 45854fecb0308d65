"""How does a chat template write calls of tools? Told by rendering calls of ours; read back by `data/written_calls.py`.

Three styles cover the templates that were tried (`tests/test_shipped_templates.py`):

- *object*: a JSON object, or a list of them, with name and arguments as keys: `<tool_call>{"name": …}</tool_call>` of
  Qwen2.5 and Hermes, Llama 3's bare `{"name": …, "parameters": {…}}`, Mistral's `[TOOL_CALLS][{…}]`;
- *mapping*: a name, then its arguments in brackets: `to=functions.NAME…<|message|>{…}` of gpt-oss, DeepSeek's blocks,
  `call:NAME{city:<|"|>Rome<|"|>}` of Gemma 4, `[NAME(city='Rome')]` of LFM2 and Llama 4;
- *apart*: a name, then each argument between texts of its own: Qwen3-Coder's `<parameter=city>`, GLM's `<arg_key>`.

Not covered: a template that writes the arguments before the name, or leaves out which argument is which.
"""

import json
import os.path
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forerun.data.template_tools import ARGUMENT, CALLED, QUESTION, TOOL, VALUE, CallForm, answer_of, call_of, in_form
from forerun.data.written_values import read_value

SECOND, OTHER, CONTENT, NEXT_CALLED = "probe_second", "probe_other", "probe_content", "probe_next"
ARGUMENTS = {ARGUMENT: VALUE, SECOND: OTHER}
RenderCalls = Callable[..., str | None]
"""`render(messages, tools, add_generation_prompt=…)`: what a template makes of them; None where it refuses them."""


@dataclass(frozen=True)
class CallGrammar:
    """What stands around the parts of a call."""

    style: Literal["object", "mapping", "apart"]
    head: str
    """Before the object, or before the name; without blanks at its ends' outside. Empty: calls begin the answer."""
    tail: str = ""
    """After the object or the arguments, up to where the turn ends."""
    joint: str = ""
    """Between the arguments of a call and the name of the next, where that is not tail and head."""
    name_key: str = "name"
    arguments_key: str = "arguments"
    between: str = ""
    """From the name to the bracket (`mapping`), or to what opens the first argument (`apart`)."""
    quote: str = ""
    """What texts stand in, where it is no quotation mark."""
    opening: str = ""
    """Before the name of an argument (`apart`)."""
    link: str = ""
    """From the name of an argument to its value (`apart`)."""
    closing: str = ""
    """After a value, with blanks that are not the value's (`apart`)."""


HERMES = CallGrammar("object", "<tool_call>\n", "\n</tool_call>")
"""As Hermes, Qwen2.5 and Qwen3 write calls, our own template does, and the repair `tool-calls`."""


def call_grammar(render: RenderCalls, form: CallForm | None, ends: Sequence[str]) -> CallGrammar | None:
    """How calls are written; None where that is none of the styles. `ends` are texts of the tokens that end a turn."""
    text = _rendered(render, form, call_of(ARGUMENTS))
    if form is None or text is None or CALLED not in text:
        return None
    head = _head(text, render, form)
    for style in (_object, _mapping, _apart):
        read = style(text, head)
        if read is not None:
            grammar, end = read
            joint = "" if grammar.style == "object" else _joint(render, form, grammar)
            return CallGrammar(**{**vars(grammar), "tail": _before_ends(text[end:], ends), "joint": joint})
    return None


def _rendered(render: RenderCalls, form: CallForm | None, *calls: Mapping[str, Any], content: str = "") -> str | None:
    return render([QUESTION, *in_form([answer_of(*calls, content=content)], form)], [TOOL])


def _head(text: str, render: RenderCalls, form: CallForm) -> str:
    """What stands before the name, whether the answer says something before or not."""
    before = text[: text.index(CALLED)]
    prompt = render([QUESTION], [TOOL], add_generation_prompt=True) or ""
    spoken = _rendered(render, form, call_of(ARGUMENTS), content=CONTENT) or ""
    spoken = spoken[: max(0, spoken.find(CALLED))]
    if text.startswith(prompt):
        before = before[len(prompt) :]
    elif CONTENT not in spoken:
        before = before[len(os.path.commonprefix([prompt, before])) :]
    if CONTENT in spoken:
        before = os.path.commonprefix([before[::-1], spoken[::-1]])[::-1]
    return before.lstrip()


def _object(text: str, head: str) -> tuple[CallGrammar, int] | None:
    """A JSON object, or a list of them, that holds the name."""
    name = text.index(CALLED)
    for begin in range(name - len(head), name):
        read = read_value(text, begin) if text[begin] in "[{" else None
        if read is None or read[1] < name:
            continue
        value, end = read
        item = value[0] if isinstance(value, list) and value else value
        function = item.get("function", item) if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        name_key = next((key for key, own in function.items() if own == CALLED), None)
        arguments = next((key for key, own in function.items() if _are_arguments(own)), None)
        if name_key is not None and arguments is not None:
            own_head = head[: len(head) - (name - begin)]
            return CallGrammar("object", own_head, name_key=name_key, arguments_key=arguments), end
    return None


def _are_arguments(value: Any) -> bool:
    return value == ARGUMENTS or (isinstance(value, str) and value == json.dumps(ARGUMENTS))


def _mapping(text: str, head: str) -> tuple[CallGrammar, int] | None:
    """A name, and all its arguments in brackets."""
    after = text.index(CALLED) + len(CALLED)
    quote = _quote(text)
    for bracket in range(after, text.index(ARGUMENT, after)):
        read = read_value(text, bracket, quote) if text[bracket] in "{(" else None
        if read is not None and read[0] == ARGUMENTS:
            return CallGrammar("mapping", head, between=text[after:bracket], quote=quote), read[1]
    return None


def _quote(text: str) -> str:
    """What stands before and after a value and is no quotation mark; empty where there is none."""
    value = text.index(VALUE)
    before = text[text.index(ARGUMENT) + len(ARGUMENT) : value].lstrip("\"':= ")
    return before if before and text.startswith(before, value + len(VALUE)) else ""


def _apart(text: str, head: str) -> tuple[CallGrammar, int] | None:
    """A name, and each argument between texts of its own."""
    after = text.index(CALLED) + len(CALLED)
    places = [text.find(word, after) for word in (ARGUMENT, VALUE, SECOND, OTHER)]
    if places != sorted(places) or places[0] < 0:
        return None
    first, value, second, other = places
    until_key, link = text[after:first], text[first + len(ARGUMENT) : value]
    from_value = text[value + len(VALUE) : second]
    shared = os.path.commonprefix([until_key[::-1], from_value[::-1]])[::-1]
    opening = shared.lstrip("> \n\t")  # `>` may end both the name's tag and the value's
    closing = from_value.removesuffix(opening).rstrip() if opening else ""
    if not (opening and link and closing):
        return None
    blanks = from_value[: len(from_value) - len(from_value.lstrip())]
    closing = blanks + closing.lstrip()
    end = text.find(closing, other + len(OTHER))
    between = until_key.removesuffix(opening)
    grammar = CallGrammar("apart", head, between=between, opening=opening, link=link, closing=closing)
    return None if end < 0 else (grammar, end + len(closing))


def _joint(render: RenderCalls, form: CallForm, grammar: CallGrammar) -> str:
    """What stands between two calls, where it is not the end of one and the head of another."""
    following = call_of(ARGUMENTS, "probecal2")
    following["function"]["name"] = NEXT_CALLED
    text = _rendered(render, form, call_of(ARGUMENTS), following) or ""
    if NEXT_CALLED not in text or CALLED not in text:
        return ""
    read = _mapping(text, "") if grammar.style == "mapping" else _apart(text, "")
    begin = text.index(NEXT_CALLED)
    if read is None or read[1] > begin:
        return ""
    joint = text[read[1] : begin]
    return "" if joint.endswith(grammar.head) else joint


def _before_ends(text: str, ends: Sequence[str]) -> str:
    """`text` up to the first token that ends a turn."""
    return text[: min((place for end in ends if (place := text.find(end)) >= 0), default=len(text))].rstrip()
