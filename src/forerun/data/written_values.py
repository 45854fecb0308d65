"""A value as chat templates write one: JSON, as Python prints it, or with quotes of a model's own (Gemma 4's `<|"|>`).

`{"a": 1}`, `{'a': True}`, `{a:<|"|>x<|"|>}` and `(a='x', b=2)` are mappings. What is JSON is read as JSON.
"""

import json
import re
from typing import Any

CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
WORD = re.compile(r"[^\s:=,\"'{}()\[\]<>]+")
BLANK = re.compile(r"\s*")
AFTER_TEXT = re.compile(r"\s*(?:[,:=)\]}]|$)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
CLOSING = {"{": "}", "(": ")", "[": "]"}
MOST_DEPTH = 64
QUOTES = ('"', "'")


def read_value(text: str, at: int, quote: str = "") -> tuple[Any, int] | None:
    """The value that begins at `at`, and the place after it; None where there is none. `quote` is one of its own."""
    try:
        return json.JSONDecoder(strict=False, parse_constant=_no_number).raw_decode(text, BLANK.match(text, at).end())  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        pass
    try:
        return _value(text, at, (quote, *QUOTES) if quote else QUOTES, 0)
    except (ValueError, IndexError):
        return None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _value(text: str, at: int, quotes: tuple[str, ...], depth: int) -> tuple[Any, int]:
    if depth > MOST_DEPTH:
        raise ValueError(f"values are at most {MOST_DEPTH} deep")
    at = _after_blank(text, at)
    quote = next((quote for quote in quotes if text.startswith(quote, at)), None)
    if quote is not None:
        return _text(text, at + len(quote), quote)
    if text[at] == "[":
        return _list(text, at, quotes, depth)
    if text[at] in "{(":
        return _mapping(text, at, quotes, depth)
    number = NUMBER.match(text, at)
    if number is not None:
        return json.loads(number[0]), number.end()
    word = WORD.match(text, at)
    if word is None or word[0] not in CONSTANTS:
        raise ValueError("no value")
    return CONSTANTS[word[0]], word.end()


def _list(text: str, at: int, quotes: tuple[str, ...], depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _after_blank(text, at + 1)
    while text[at] != "]":
        value, at = _value(text, at, quotes, depth + 1)
        values.append(value)
        at = _after_comma(text, at, "]")
    return values, at + 1


def _mapping(text: str, at: int, quotes: tuple[str, ...], depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    closing = CLOSING[text[at]]
    at = _after_blank(text, at + 1)
    while text[at] != closing:
        quote = next((quote for quote in quotes if text.startswith(quote, at)), None)
        if quote is not None:
            key, at = _text(text, at + len(quote), quote)
        elif (word := WORD.match(text, at)) is not None:
            key, at = word[0], word.end()
        else:
            raise ValueError("no key")
        at = _after_blank(text, at)
        if text[at] not in ":=":
            raise ValueError("no value of a key")
        values[key], at = _value(text, at + 1, quotes, depth + 1)
        at = _after_comma(text, at, closing)
    return values, at + 1


def _text(text: str, at: int, quote: str) -> tuple[str, int]:
    """A text up to its quote; backslashes escape within `"` and `'`, and stand for themselves in quotes of a model.

    Some templates (LFM2's) do not escape: a quotation mark ends a text where a value may end, else it is a letter.
    """
    if quote not in QUOTES:
        end = text.index(quote, at)
        return text[at:end], end + len(quote)
    letters: list[str] = []
    while text[at] != quote or AFTER_TEXT.match(text, at + 1) is None:
        if text[at] != "\\":
            letters.append(text[at])
        elif text[at + 1] == "u" and re.match(r"[0-9a-fA-F]{4}", text[at + 2 :]):
            letters.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 5
        else:
            letters.append(ESCAPES.get(text[at + 1], text[at + 1]))
            at += 1
        at += 1
    return "".join(letters), at + 1


def _after_blank(text: str, at: int) -> int:
    return BLANK.match(text, at).end()  # type: ignore[union-attr]


def _after_comma(text: str, at: int, closing: str) -> int:
    at = _after_blank(text, at)
    if text[at] == ",":
        return _after_blank(text, at + 1)
    if text[at] != closing:
        raise ValueError("no comma")
    return at
