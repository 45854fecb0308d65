"""Where in a program something happened: its own line, and the library's where that is another."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from forerun.virtual.program_lines import INSIDE, calling_line

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


def program_line() -> str:
    """File and line of the program's own code that is running, such as `train.py:12 (modeling_llama.py:214)`."""
    nearest = calling_line()
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(LIBRARIES) and not any(part in path for part in INSIDE):
            own = f"{Path(path).name}:{frame.f_lineno}"
            return own if own == nearest else f"{own} ({nearest})"
        frame = frame.f_back
    return nearest
