"""Functions of PyTorch and Python that are others while a program runs, and are put back wherever they went.

A module may hold such a function by its name (`from safetensors.torch import save_file`). One that was imported before
would go on with the real one, and write to the user's disk; one that is imported meanwhile would hold ours for ever,
and the next real run in the process would save empty files.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

_MISSING = object()
_ORIGINALS: dict[int, tuple[Any, Any]] = {}
"""The replacement, which must live as long as its id is a key, and the original."""
_open_sessions: list[set[str]] = []
"""Names of the modules that were there when each began."""


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a module or class is another one; it may have been missing. A function keeps its signature.

    Programs ask for it: accelerate reads whether an optimizer's `zero_grad` has `set_to_none`.
    """
    before = target.__dict__.get(name, _MISSING)
    if isinstance(value, FunctionType) and isinstance(before, FunctionType):
        if id(value) in _ORIGINALS:  # one function stands for several
            code, names, defaults = value.__code__, value.__globals__, value.__defaults__
            value = FunctionType(code, names, value.__name__, defaults, value.__closure__)
        value.__signature__ = inspect.signature(before)  # type: ignore[attr-defined]
    if callable(value) and before is not _MISSING:
        _ORIGINALS[id(value)] = value, before
    setattr(target, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(target, name)
        else:
            setattr(target, name, before)
        if not _open_sessions:
            _ORIGINALS.pop(id(value), None)


@contextlib.contextmanager
def replaced_everywhere(replacements: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Functions are others in their modules and wherever they were imported by name; each is owner, name and value."""
    pairs = [(getattr(owner, name), value) for owner, name, value in replacements]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(replaced(owner, name, value))
        stack.callback(_swap, {id(value): (value, before) for before, value in pairs})
        _swap({id(before): (before, value) for before, value in pairs})
        yield


@contextlib.contextmanager
def put_back_everywhere() -> Iterator[None]:
    """Afterwards, no module that was imported meanwhile holds a replacement."""
    loaded = set(sys.modules)
    _open_sessions.append(loaded)
    try:
        yield
    finally:
        _swap(_ORIGINALS, sys.modules.keys() - loaded)
        _open_sessions.pop()
        if not _open_sessions:
            _ORIGINALS.clear()  # replacements hold recorders


def swap_everywhere(before: Any, after: Any) -> None:
    """Every module that holds `before` by a name holds `after` instead."""
    _swap({id(before): (before, after)})


def _swap(successors: Mapping[int, tuple[Any, Any]], names: set[str] | None = None) -> None:
    """Give modules the successors of what they hold, by its id; Python's own modules and ours stay as they are."""
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "forerun" or (names is not None and name not in names):
            continue
        table = getattr(module, "__dict__", {})
        if successors.keys().isdisjoint(map(id, list(table.values()))):  # thousands of modules hold none
            continue
        for attribute, value in list(table.items()):
            before, after = successors.get(id(value), (_MISSING, None))
            if before is value:
                table[attribute] = after
