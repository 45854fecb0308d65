"""Which line of the program is running, among those of PyTorch and of the virtual GPU."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")
"""Packages that call PyTorch for a program's loop and bring no layers of their own: their caller is of interest."""
INSIDE = ("/torch/", "/forerun/virtual/", "/contextlib.py", "<", *(f"/site-packages/{name}/" for name in WRAPPERS))
"""Files that are no part of the program being traced."""


def calling_line() -> str:
    """File and line of the nearest caller outside PyTorch and the virtual GPU, such as `modeling_llama.py:214`."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if name := _own_name(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@cache
def _own_name(path: str) -> str:
    """Name of a file outside PyTorch and the virtual GPU; empty for any other."""
    return "" if any(part in path for part in INSIDE) else Path(path).name
