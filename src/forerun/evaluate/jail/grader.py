"""The tests' side: run them against a program in another process, and say how they ended.

Tests see the program's functions as proxies. Every comparison is made here, between values that were made here of plain
types: an object of the program's own class equals nothing but itself, however its `__eq__` answers. What tests use of
the task's own text (imports, helpers of the prompt) comes from `prelude`, not from the program.

**Limits.** Without tests `passed` means that the program's process says it reached its end, which it can say at once.
A test that asks the program's own objects a question (`obj.is_right(x)`) believes the answer.
"""

import builtins
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.evaluate.jail import values

MESSAGE = 300
"""Characters of a failure's message."""


class ProgramEnded(BaseException):
    """The program's process ended, broke the form of answers, or was refused something: no test goes on."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class ProgramError(Exception):
    """An exception of a class of the program's own."""


class Remote:
    """An object of the program: what tests do with it is asked of the program, but for comparisons."""

    def __init__(self, program: "RemoteProgram", number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the program's function."""
        return self._program.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return self._program.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask("set", self, name, value)

    def __iter__(self) -> Any:
        iterator = self._program.ask("iter", self)
        return iterator if isinstance(iterator, Remote) else iter(iterator)

    def __next__(self) -> Any:
        return self._program.ask("next", self)

    def __len__(self) -> int:
        return self._program.ask("len", self)

    def __getitem__(self, key: Any) -> Any:
        return self._program.ask("item", self, key)

    def __str__(self) -> str:
        return self._program.ask("str", self)

    def __repr__(self) -> str:
        return self._program.ask("repr", self)

    def __bool__(self) -> bool:
        return self._program.ask("bool", self)


class RemoteProgram:
    """The other end of a program's pipe."""

    def __init__(self, pipe: values.MessagePipe) -> None:
        self._pipe = pipe
        self._remotes: dict[int, Remote] = {}
        self._functions: list[Any] = []

    def ask(self, action: str, *arguments: Any) -> Any:
        """The program's answer: a value made here, or the exception that it says it met."""
        self._send([action, values.encode(arguments, self._refer)])
        return self.answer(arguments)

    def answer(self, arguments: Sequence[Any] = ()) -> Any:
        """Receive the answer to what was sent last; functions of the tests that it calls are run in between."""
        while True:
            kind, value, changes = self._receive()
            if kind == "error":
                raise _error(*value)
            if kind == "value":
                for place, change in changes:
                    _take_over(arguments[place], change)
                return value
            try:
                result = self._functions[value[0]](*value[1])
            except Exception as error:
                raise ProgramEnded("failed", f"{type(error).__name__}: {error}"[:MESSAGE]) from error
            self._send(values.encode(result, self._refer))

    def _receive(self) -> tuple[str, Any, list[tuple[int, Any]]]:
        """What came, made of plain values: kind, content, changes of arguments by place."""
        try:
            kind, content, changes, refusals = self._pipe.receive()
            if refusals:
                raise ProgramEnded("refused", str(refusals[0])[:MESSAGE])
            overwrites = [(int(place), values.decode(change, self._resolve)) for place, change in changes]
            if kind == "error":
                return kind, (str(content[0]), str(content[1])), overwrites
            if kind == "value":
                return kind, values.decode(content, self._resolve), overwrites
            return "back", (int(content[0]), [values.decode(c, self._resolve) for c in content[1]]), overwrites
        except EOFError as error:
            raise ProgramEnded("gone", "the program's process ended") from error
        except MALFORMED as error:
            raise ProgramEnded("failed", f"the program's answer is malformed: {error}"[:MESSAGE]) from error

    def _send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except BrokenPipeError as error:
            raise ProgramEnded("gone", "the program's process ended") from error

    def _refer(self, value: Any) -> list[Any]:
        if isinstance(value, Remote):
            return ["o", [object.__getattribute__(value, "_number")]]
        if callable(value):
            self._functions.append(value)
            return ["x", len(self._functions) - 1]
        raise TypeError(f"tests hand plain values to a program, objects of its own, or functions; found {type(value)}")

    def _resolve(self, tag: str, content: Any) -> Any:
        if tag == "o":
            number = int(content[0])
            return self._remotes.setdefault(number, Remote(self, number))
        if tag == "m" and type(content) is str:
            return ModuleName(content)
        raise ValueError(f"no such reference: {tag}")


class ModuleName(str):
    """A module that the program bound to a name."""

    __slots__ = ()


MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What reading an answer raises that no honest program sends."""


def _take_over(old: Any, new: Any) -> None:
    """Changes of mutable arguments: those of a call are a list of their own."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for was, now in zip(old, new, strict=True):
            if isinstance(was, values.MUTABLE) and type(was) is type(now):
                values.overwrite(was, now)


def _error(name: str, message: str) -> BaseException:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError and its like want more than a message
            return ProgramError(f"{name}: {message}")
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return ProgramEnded("failed", f"{name}: {message}"[:MESSAGE])
    return ProgramError(f"{name}: {message}")


def grade(
    tests: str, pipe: values.MessagePipe, *, prelude: str, names: Sequence[str], modules: Mapping[str, str]
) -> tuple[str, str]:
    """Status and message of a program on its tests.

    `names` are the globals of the program that the tests may use; `modules` says which of them are a module, which is
    imported here where the program imported it too.
    """
    program, space = RemoteProgram(pipe), dict[str, Any]({"__name__": "program"})
    try:
        program.answer()
        exec(compile(prelude, "<prelude>", "exec"), space)  # noqa: S102 - the task's own text, shut in like the program
        for name in names:
            try:
                value = program.ask("global", name)
            except NameError:
                continue
            if not isinstance(value, ModuleName):
                space[name] = value
            elif modules.get(name) == value:
                space[name] = importlib.import_module(value)
        exec(compile(tests, "<tests>", "exec"), space)  # noqa: S102 - as above
        program.ask("bool", True)  # it still lives, and was refused nothing since
    except ProgramEnded as error:
        return error.status, str(error)
    except ProgramError as error:
        return "failed", str(error)[:MESSAGE]
    except MemoryError as error:
        return "memory", f"MemoryError: {error}"[:MESSAGE]
    except BaseException as error:  # noqa: BLE001 - tests fail by any exception
        return "failed", f"{type(error).__name__}: {error}"[:MESSAGE]
    return "passed", ""


def report(verdict: tuple[str, str], descriptor: int) -> None:
    """Write the verdict for the process that waits for it."""
    status, message = verdict
    os.write(descriptor, f"{status}\n{message}".encode("utf-8", "replace"))
