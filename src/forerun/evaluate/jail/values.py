"""Values that cross between a program and its tests: plain data by value, everything else by reference.

A message is JSON after four bytes of length. Only values of exactly Python's own plain types are ever made from one, so
that nothing that a program sends has methods of the program's: an object of its own class is a number to the tests.
"""

import builtins
import datetime
import json
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST_MESSAGE = 1 << 26
"""Bytes of one message."""
SAFE_INTEGER = 1 << 53
"""From here on integers travel in hexadecimal: Python reads decimals of at most 4,300 digits."""

_SEQUENCES: dict[str, type] = {"l": list, "t": tuple, "s": set, "z": frozenset, "q": deque}
_MAPPINGS: dict[str, type] = {"d": dict, "O": OrderedDict, "C": Counter}
_TEXTS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "i": (int, hex, lambda text: int(text, 16)),
    "f": (float, repr, float),
    "c": (complex, repr, complex),
    "b": (bytes, bytes.hex, bytes.fromhex),
    "B": (bytearray, bytearray.hex, bytearray.fromhex),
    "D": (Decimal, str, Decimal),
    "F": (Fraction, str, Fraction),
    "da": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "dt": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "ti": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
}
_TAGS = {kind: tag for tag, (kind, _, _) in _TEXTS.items()}
_TAGS_OF_MANY = {kind: tag for tag, kind in (_SEQUENCES | _MAPPINGS).items()}
MUTABLE = (list, dict, set, bytearray, deque)


def encode(value: Any, refer: Callable[[Any], list[Any]]) -> Any:
    """The value as JSON's own types; `refer` makes a reference to what has no plain form."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SAFE_INTEGER < value < SAFE_INTEGER else ["i", hex(value)]
    if kind is float:
        return value if value - value == 0 else ["f", repr(value)]  # infinities and NaN have no JSON
    if kind in _TAGS:
        return [_TAGS[kind], _TEXTS[_TAGS[kind]][1](value)]
    if kind is range:
        return ["r", [encode(part, refer) for part in (value.start, value.stop, value.step)]]
    if kind is datetime.timedelta:
        return ["td", [value.days, value.seconds, value.microseconds]]
    if kind in _TAGS_OF_MANY:
        return _encode_many(value, _TAGS_OF_MANY[kind], refer)
    if (kind is type or kind is type(len)) and getattr(builtins, value.__name__, None) is value:
        return ["n", value.__name__]
    for plain in (int, float, str, bytes, tuple, list, set, dict):  # a named tuple counts by its value
        if kind is not bool and issubclass(kind, plain):
            return encode(_plain_copy(value, plain), refer)
    return refer(value)


def _plain_copy(value: Any, plain: type) -> Any:
    if plain is int:
        return int.__add__(value, 0)
    if plain is float:
        return float.__add__(value, 0.0)
    if plain is str:
        return str.__add__(value, "")
    return dict(dict.items(value)) if plain is dict else plain(plain.__iter__(value))  # type: ignore[attr-defined]


def _encode_many(value: Any, tag: str, refer: Callable[[Any], list[Any]]) -> list[Any]:
    if tag in _MAPPINGS:
        return [tag, [[encode(key, refer), encode(item, refer)] for key, item in value.items()]]
    return [tag, [encode(item, refer) for item in value]]


def decode(content: Any, resolve: Callable[[str, Any], Any]) -> Any:
    """The value of `encode`; `resolve` finds what a reference of an unknown tag means.

    Raises:
        ValueError: no encoded value.
    """
    if not isinstance(content, list):
        if content is None or type(content) in (bool, int, float, str):
            return content
        raise ValueError(f"a value is plain or a list; found {type(content).__name__}")
    if len(content) != 2 or type(content[0]) is not str:
        raise ValueError("a value that is a list has a tag and a content")
    tag, inner = content
    if tag in _TEXTS:
        return _TEXTS[tag][2](inner)
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(item, resolve) for item in inner)
    if tag in _MAPPINGS:
        return _MAPPINGS[tag]({decode(key, resolve): decode(item, resolve) for key, item in inner})
    if tag == "r":
        return range(*(decode(part, resolve) for part in inner))
    if tag == "td":
        return datetime.timedelta(*inner)
    if tag == "n" and type(inner) is str and not inner.startswith("_"):
        return getattr(builtins, inner)
    return resolve(tag, inner)


def overwrite(target: Any, content: Any) -> None:
    """Give a mutable value the content of another of its type, as a function does that changes its argument."""
    if isinstance(target, list | bytearray):
        target[:] = content
    else:
        target.clear()
        (target.extend if isinstance(target, deque) else target.update)(content)


class MessagePipe:
    """Messages out of one descriptor and into another."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def send(self, message: Any) -> None:
        """Send what JSON can say.

        Raises:
            ValueError: it is longer than `LARGEST_MESSAGE`.
        """
        content = json.dumps(message, separators=(",", ":")).encode()
        if len(content) > LARGEST_MESSAGE:
            raise ValueError(f"a value of {len(content):,} bytes; the most is {LARGEST_MESSAGE:,}")
        content = len(content).to_bytes(4, "big") + content
        while content:
            content = content[os.write(self._writing, content) :]

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError: the other end is closed.
            ValueError: what came is no message.
        """
        length = int.from_bytes(self._read(4), "big")
        if length > LARGEST_MESSAGE:
            raise ValueError(f"a message of {length:,} bytes; the most is {LARGEST_MESSAGE:,}")
        return json.loads(self._read(length))

    def _read(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            parts.append(os.read(self._reading, min(length, 1 << 20)))
            if not parts[-1]:
                raise EOFError
            length -= len(parts[-1])
        return b"".join(parts)
