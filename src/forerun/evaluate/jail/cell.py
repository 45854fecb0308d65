"""The program's side: run text that a model wrote, then answer the tests' calls by value until they are done.

Nothing here is trusted once the program runs: it may answer what it likes, but only with plain values, and it decides
no verdict. The audit hook is a belt beside the kernel's walls: it says `refused` where a program tries what it may not.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from forerun.evaluate.jail import values

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")
REFUSED = (
    "os.", "shutil.", "subprocess.", "socket.", "ctypes.", "signal.", "pty.", "fcntl.", "mmap.", "resource.", "syslog.",
    "webbrowser.", "urllib.", "http.", "ftplib.", "smtplib.", "sqlite3.", "tempfile.", "gc.", "winreg.", "code.__new__",
    "sys.addaudithook", "sys.settrace", "sys.setprofile", "cpython.remote_debugger_script",
)  # fmt: skip
"""Beginnings of audit events that are refused (docs.python.org/3.11/library/audit_events.html)."""
REFUSED_IMPORTS = frozenset({"ctypes", "_ctypes", "resource", "_posixsubprocess", "_socket", "_multiprocessing",
                             "fcntl", "mmap", "termios", "pty", "_testcapi", "_xxsubinterpreters"})  # fmt: skip
MESSAGE = 300
"""Characters of a failure's message."""


def watch(refusals: list[str]) -> None:
    """Refuse what a function under test has no business with, and write down what it tried."""
    readable = tuple({os.path.dirname(os.__file__) + "/", sys.base_prefix + "/lib"})
    begins, forbidden, seek, write_flags = str.startswith, REFUSED_IMPORTS, str.__contains__, WRITES

    def refuse(event: str) -> None:
        refusals.append(event)
        raise PermissionError(f"the sandbox refuses {event}")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if type(flags) is int and flags & write_flags:
                refuse("open for writing")
            is_plain = type(path) is int or (type(path) is str and not seek(path, ".."))
            if not is_plain or (type(path) is str and begins(path, "/") and not begins(path, readable)):
                refuse("open outside the standard library")
        elif event == "import" and arguments[0] in forbidden:
            refuse("import of a refused module")
        elif begins(event, REFUSED) and event not in HARMLESS:
            refuse(event)

    sys.addaudithook(hook)


class Objects:
    """What the program handed out by reference, and functions of the tests that it was handed."""

    def __init__(self, call_back: Callable[..., Any]) -> None:
        self._by_number: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._call_back = call_back

    def refer(self, value: Any) -> list[Any]:
        """The reference to a value, the same each time."""
        if isinstance(value, ModuleType):
            return ["m", value.__name__]
        number = self._numbers.setdefault(id(value), len(self._numbers))
        self._by_number[number] = value
        return ["o", [number, type(value).__name__]]

    def resolve(self, tag: str, content: Any) -> Any:
        """What a reference of the tests means."""
        if tag == "o":
            return self._by_number[content[0]]
        if tag == "x":
            return lambda *arguments: self._call_back(content, arguments)
        raise ValueError(f"no such reference: {tag}")


def run_cell(program: str, pipe: values.MessagePipe, *, is_watched: bool = True) -> None:
    """Run the program and answer until the tests are done; what it raises is an answer too."""
    refusals: list[str] = []
    for name in [name for name in sys.modules if name in REFUSED_IMPORTS or name.startswith(("ctypes.", "forerun"))]:
        del sys.modules[name]

    def call_back(number: int, arguments: tuple[Any, ...]) -> Any:
        pipe.send(["back", [number, [values.encode(a, objects.refer) for a in arguments]], [], refusals[:1]])
        return values.decode(pipe.receive(), objects.resolve)

    objects = Objects(call_back)
    space: dict[str, Any] = {"__name__": "program"}

    def load() -> None:
        compiled = compile(program, "<program>", "exec")
        if is_watched:
            watch(refusals)
        exec(compiled, space)  # noqa: S102 - the purpose of this file

    actions = {**ACTIONS, "global": partial(_global, space)}
    _answer(pipe, objects, refusals, load, ())
    with contextlib.suppress(EOFError):
        while True:
            action, content = pipe.receive()
            _answer(pipe, objects, refusals, actions[action], values.decode(content, objects.resolve))


def _answer(
    pipe: values.MessagePipe, objects: Objects, refusals: list[str], action: Callable[..., Any], arguments: Any
) -> None:
    try:
        before = [_mutable(argument, objects) for argument in arguments]
        result = values.encode(action(*arguments), objects.refer)
        after = [_mutable(argument, objects) for argument in arguments]
        changes = [[n, new] for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        pipe.send(["value", result, changes, refusals[:1]])
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its answer
        try:
            message = str(error)[:MESSAGE]
        except BaseException:  # noqa: BLE001 - its own __str__
            message = ""
        pipe.send(["error", [type(error).__name__, message], [], refusals[:1]])


def _mutable(value: Any, objects: Objects) -> Any:
    return values.encode(value, objects.refer) if isinstance(value, values.MUTABLE) else None


def _global(space: dict[str, Any], name: str) -> Any:
    if name not in space:
        raise NameError(f"name {name!r} is not defined")
    return space[name]


ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "iter": iter,
    "next": next,
    "len": len,
    "item": lambda target, key: target[key],
    "str": str,
    "repr": repr,
    "bool": bool,
}
"""What tests may ask for, beside the program's globals by name."""
