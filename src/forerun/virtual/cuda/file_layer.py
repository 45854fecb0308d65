"""The temporary layer over the file system that takes what a program writes: where each path is read and written."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from forerun.virtual.cuda.saves import SavedObjects

UNTOUCHED = ("/dev/", "/proc/", "/sys/")
STAT, LSTAT, MAKE_FOLDERS = os.stat, os.lstat, os.makedirs
"""Python's own, as they were before a program's were redirected."""


class WrittenFiles(Enum):
    """What becomes of the files that a program writes."""

    LAYER = "layer"
    """Python's functions on files are redirected to a `FileLayer`."""
    VIEW = "view"
    """The process has a view of the file system that is thrown away as a whole (`cli/file_wall.py`)."""
    KEPT = "kept"
    """They are written."""


@dataclass
class FileLayer:
    """The temporary layer over the file system; `root` is an empty folder."""

    root: Path
    hidden: set[str] = field(default_factory=set)
    saved_bytes: int = 0
    """Bytes of tensors that the program would have saved."""
    saves: SavedObjects = field(default_factory=SavedObjects)
    """What `torch.save` was given, for a program that loads it again."""

    def twin(self, path: str) -> str:
        """Where the layer keeps the file of an absolute path."""
        return str(self.root) + os.path.abspath(path)

    def is_ours(self, path: str) -> bool:
        """Whether a path needs no redirection."""
        whole = os.path.abspath(path)
        return whole.startswith(UNTOUCHED) or whole == str(self.root) or whole.startswith(f"{self.root}/")

    def for_reading(self, path: Any) -> Any:
        """The path to read from: the layer's where it has one."""
        text = path_text(path)
        if text is None:
            return path
        if self.is_ours(text):
            if os.path.isabs(text) or is_there(text):
                return path
            below = os.path.abspath(text).removeprefix(str(self.root))  # of a program that works in a folder it made
            return path if below in self.hidden or not is_there(below) else below
        twin = self.twin(text)
        return twin if is_there(twin) or os.path.abspath(text) in self.hidden else path

    def for_writing(self, path: Any, *, copy: bool = False) -> Any:
        """The path to write to; with `copy` the original's content goes there first."""
        text = path_text(path)
        if text is None or text.startswith(UNTOUCHED):
            return path
        twin, whole = text if self.is_ours(text) else self.twin(text), os.path.abspath(text)
        lead = os.path.realpath(twin)
        if not self.is_ours(lead):  # by a link of the layer to something that was there before
            return self.for_writing(lead, copy=copy)
        if twin is text:
            return path
        parent = os.path.dirname(whole)
        if is_there(parent) or is_there(self.twin(parent)):
            MAKE_FOLDERS(os.path.dirname(twin), exist_ok=True)
        if copy and not is_there(twin) and whole not in self.hidden and os.path.isfile(text):
            shutil.copyfile(text, twin)
        self.hidden.discard(whole)
        return twin

    def names_in(self, folder: str, names: Callable[[str], list[str]]) -> list[str]:
        """Names in a folder, of the layer and below it; `names` lists one real folder.

        Raises:
            OSError: there is no such folder.
        """
        twin = self.twin(folder)
        if self.is_ours(folder) or not is_there(twin):
            every = names(folder)
        else:
            every = sorted({*names(twin), *(names(folder) if is_there(folder) else ())})
        return [name for name in every if os.path.abspath(os.path.join(folder, name)) not in self.hidden]

    def note_saved(self, value: Any) -> None:
        """Count the bytes of all tensors in what was saved, whole modules included."""
        leaves = [*tree_leaves(value), *(each for own in tree_leaves(value) for each in _tensors_of(own))]
        self.saved_bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _tensors_of(value: Any) -> list[Any]:
    """What a module or an optimizer has on a disk; nothing of anything else."""
    is_whole = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
    return tree_leaves(value.state_dict()) if is_whole else []


def path_text(path: Any) -> str | None:
    """A path as text; None for a file descriptor."""
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None


def is_there(path: str) -> bool:
    """Whether a real path exists; a link counts whatever it leads to."""
    try:
        LSTAT(path)
    except OSError:
        return False
    return True
