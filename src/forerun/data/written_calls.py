"""Calls of tools in what a model has written, in the form that its chat template has (`data/call_grammar.py`).

Blanks may differ from the template's. What is no whole call stays text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.data.call_grammar import CallGrammar
from forerun.data.own.columns import structure_of
from forerun.data.written_values import read_value

NAME = re.compile(r"[^\s\"'{}()\[\]<>|:,;=]+")
FIRST_OBJECT = re.compile(r"\A\s*(?:<[^<>\s]*>\s*)*(?=[\[{])")
"""Where an answer begins with a call that nothing announces; a tag such as `<|python_tag|>` may."""
FIRST = re.compile(r"\A\s*")
FURTHER_OBJECT = re.compile(r"\s*;?\s*(?=\{)")
ON_THE_LINE = re.compile(r"[^{}()\n]{0,120}?(?=[{(])")
"""What may stand between a name and its bracket besides what the template writes there (gpt-oss: `<|constrain|>`)."""
Call = tuple[str, Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


def split_written(text: str, grammar: CallGrammar, tools: Tools = ()) -> tuple[str, list[Call]]:
    """The text without its calls, and name and arguments of each. `tools` say which arguments are texts."""
    begin = re.compile(rf"\s*{_loose(grammar.head)}") if grammar.head else FIRST
    if not grammar.head and grammar.style == "object":
        begin = FIRST_OBJECT
    left, calls, at = "", [], 0
    for match in begin.finditer(text):
        if match.start() < at and match.end() <= at:
            continue
        read = _read(text, match.end(), grammar, tools)
        if read is not None:
            left += text[at : match.start()]
            calls += read[0]
            at = read[1]
    return left + text[at:], calls


def beginning_of(grammar: CallGrammar) -> str:
    """The text with which a call begins, up to the first blank; empty where nothing announces one."""
    return (grammar.head.split() or [""])[0]


def _read(text: str, at: int, grammar: CallGrammar, tools: Tools) -> tuple[list[Call], int] | None:
    """The calls that begin here, and the place after them."""
    calls: list[Call] = []
    end, following = at, at
    while following is not None:
        read = (
            _object(text, following, grammar) if grammar.style == "object" else _named(text, following, grammar, tools)
        )
        if read is None:
            break
        calls, end = [*calls, *read[0]], read[1]
        following = _joint(text, end, grammar)
    tail = _tail(grammar).match(text, end)
    return (calls, end if tail is None else tail.end()) if calls else None


def _tail(grammar: CallGrammar) -> re.Pattern[str]:
    return re.compile(rf"\s*{_loose(grammar.tail)}" if grammar.tail else "")


def _joint(text: str, at: int, grammar: CallGrammar) -> int | None:
    """Where the next of several calls begins that one head announces."""
    if grammar.style == "object":
        further = None if grammar.head else FURTHER_OBJECT.match(text, at)
        return None if further is None else further.end()
    further = re.compile(rf"\s*{_loose(grammar.joint)}").match(text, at) if grammar.joint else None
    return None if further is None else further.end()


def _object(text: str, at: int, grammar: CallGrammar) -> tuple[list[Call], int] | None:
    read = read_value(text, at)
    if read is None:
        return None
    items = read[0] if isinstance(read[0], list) else [read[0]]
    calls = [call for item in items if (call := _call_of(item, grammar)) is not None]
    return (calls, read[1]) if calls and len(calls) == len(items) else None


def _call_of(item: Any, grammar: CallGrammar) -> Call | None:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    name = function.get(grammar.name_key)
    keys = (grammar.arguments_key, "arguments", "parameters")
    arguments = next((structure_of(function[key]) for key in keys if key in function), {})
    is_call = isinstance(name, str) and bool(name) and isinstance(arguments, Mapping)
    return (name, arguments) if is_call else None  # type: ignore[return-value]


def _named(text: str, at: int, grammar: CallGrammar, tools: Tools) -> tuple[list[Call], int] | None:
    name = NAME.match(text, at)
    if name is None:
        return None
    between = re.compile(_loose(grammar.between.replace("probe_called", name[0]))).match(text, name.end())
    if grammar.style == "apart":
        if between is None:
            return None
        arguments, end = _arguments_apart(text, between.end(), grammar, _schema(name[0], tools))
        is_whole = bool(arguments) or _tail(grammar).match(text, end) is not None
        return ([(name[0], arguments)], end) if is_whole else None
    if between is None:
        between = ON_THE_LINE.match(text, name.end())
    read = None if between is None else read_value(text, between.end(), grammar.quote)
    return None if read is None or not isinstance(read[0], Mapping) else ([(name[0], read[0])], read[1])


def _arguments_apart(text: str, at: int, grammar: CallGrammar, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Arguments that each stand between texts of their own, and the place after them."""
    before, after = _blanks_of(grammar)
    argument = re.compile(
        rf"\s*{_loose(grammar.opening)}(.+?){_loose(grammar.link.rstrip())}(.*?){_loose(grammar.closing.lstrip())}",
        re.DOTALL,
    )
    arguments: dict[str, Any] = {}
    while (match := argument.match(text, at)) is not None:
        value = match[2].removeprefix(before).removesuffix(after)
        arguments[match[1].strip()] = _typed(value, schema.get(match[1].strip()))
        at = match.end()
    return arguments, at


def _blanks_of(grammar: CallGrammar) -> tuple[str, str]:
    """Blanks that a template puts around a value."""
    link, closing = grammar.link, grammar.closing
    return link[len(link.rstrip()) :], closing[: len(closing) - len(closing.lstrip())]


def _schema(name: str, tools: Tools) -> Mapping[str, Any]:
    """The JSON schema of each argument of a tool; empty where it is not told."""
    functions = (tool.get("function", tool) for tool in tools)
    parameters = next((each.get("parameters") for each in functions if each.get("name") == name), None)
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _typed(text: str, schema: Any) -> Any:
    """A value that is written without quotes: a text where the tool says so, else what JSON makes of it, or a text."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds == "string":
        return text
    read = read_value(text, 0)
    return read[0] if read is not None and not text[read[1] :].strip() else text


def _loose(text: str) -> str:
    """A pattern for `text` whatever its blanks are."""
    parts = [re.escape(part) for part in text.split()]
    start, end = text[:1].isspace(), text[-1:].isspace()
    return (r"\s*" if start else "") + r"\s*".join(parts) + (r"\s*" if end else "")
