"""Change a module of a library as soon as the program imports it, and put it back at the end."""

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

Around = Callable[[], AbstractContextManager[Any]]


class _Patcher(importlib.abc.MetaPathFinder):
    """Finds one module as everybody does, and changes it once it is imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None], around: Around):
        self._name, self._change, self._around = name, change, around

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of that module, whose loader changes it at the end; None for all others."""
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with self._around():
                execute(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def after_import(
    name: str, change: Callable[[ModuleType], Callable[[], None]], around: Around = contextlib.nullcontext
) -> Iterator[None]:
    """Change a module now if it is imported, else as soon as it is; `change` returns what undoes it.

    `around` makes what is in force while it is imported.
    """
    undo: list[Callable[[], None]] = []
    patcher = _Patcher(name, lambda module: undo.append(change(module)), around)
    if name in sys.modules:
        undo.append(change(sys.modules[name]))
    else:
        sys.meta_path.insert(0, patcher)
    try:
        yield
    finally:
        if patcher in sys.meta_path:
            sys.meta_path.remove(patcher)
        for each in undo:
            each()
