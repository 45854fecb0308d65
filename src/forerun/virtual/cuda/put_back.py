"""Functions of PyTorch and Python that are others while a program runs, and are put back wherever they went.

A module may hold such a function by its name (`from safetensors.torch import save_file`). One that was imported before
would go on with the real one, and write to the user's disk; one that is imported meanwhile would hold ours for ever,
and the next real run in the process would save empty files.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MISSING = object()
_ORIGINALS: dict[int, tuple[Any, Any]] = {}
"""The replacement, which must live as long as its id is a key, and the original."""


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of a module or class is another one; it may have been missing."""
    before = target.__dict__.get(name, _MISSING)
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
    try:
        yield
    finally:
        _swap(_ORIGINALS, sys.modules.keys() - loaded)


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
        for attribute, value in list(table.items()):
            before, after = successors.get(id(value), (_MISSING, None))
            if before is value:
                table[attribute] = after
