"""Where in a program something happened: its own line, and the library's where that is another."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from forerun.virtual.program_lines import INSIDE, calling_line

STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
INSTALLED = (*{sysconfig.get_path(name) for name in ("purelib", "platlib")}, "/site-packages/", "/dist-packages/")
"""Folders of packages: of this environment, and of the user's own or another on the path."""

BELOW = ("/forerun/virtual/", "/torch/_", "/torch/utils/_")
"""The virtual GPU, and what of PyTorch calls it for an operator."""


def is_library(path: str) -> bool:
    """Whether a file is of an installed package, of Python, of PyTorch or of the virtual GPU."""
    return any(part in path for part in (*INSTALLED, *INSIDE)) or path.startswith(STANDARD)


def is_of_others(path: str) -> bool:
    """Whether a file is of an installed package other than PyTorch and those that only call it for a program."""
    return any(part in path for part in INSTALLED) and not any(part in path for part in INSIDE)


def path_name(path: str) -> str:
    """A file's name without its folder, as lines are named."""
    return path.rpartition("/")[2]


def program_line() -> str:
    """File and line of the program's own code that is running, such as `train.py:12 (modeling_llama.py:214)`."""
    nearest = calling_line()
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_library(path):
            own = f"{Path(path).name}:{frame.f_lineno}"
            return own if own == nearest else f"{own} ({nearest})"
        frame = frame.f_back
    return nearest


class WithinCall(str):
    """A line of the program whose one call makes several of something, after the first of them."""


def line_of_pass() -> str:
    """The program's line that makes a backward pass; `WithinCall` where the call that is running made one before, as
    the schedule of a pipeline does."""
    line, called = program_line(), None
    frame: Any = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        called, frame = frame, frame.f_back
    if called is None:
        return line
    was_here, called.f_trace_opcodes = called.f_trace_opcodes, True  # says nothing else while no debugger is there
    return WithinCall(line) if was_here else line


def is_within(file: str) -> bool:
    """Whether the nearest caller outside the virtual GPU is in a file whose path ends so."""
    frame: Any = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in BELOW):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.endswith(file)


def line_of_failure(error: BaseException) -> str:
    """File and line of the program's own code that an exception came through last; empty where there is none."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not is_library(path):
            line = f"{Path(path).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line
