"""Small files of a run that are there whole or not at all, whenever a kill comes."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and move it there; what was there stays until then."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
