"""A forecast never harms the real thing: what a program writes goes to a temporary layer and is thrown away.

Python's own file functions are redirected while the program runs: a file opened for writing is one of the layer (a copy
of the original where it is changed), a deleted one is only hidden, and reading looks into the layer first. Existing
files stay as they are. `torch.save` and safetensors write below Python, so they are answered here: bytes are counted
and nothing is written. Programs started by the program are not covered.
"""

import builtins
import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

UNTOUCHED = ("/dev/", "/proc/", "/sys/")
TRACKERS_OFF = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "CLEARML_OFFLINE_MODE": "1", "TRACKIO_MODE": "offline",
}  # fmt: skip
"""Environment that turns off what would tell others of a run."""


@dataclass
class FileLayer:
    """The temporary layer over the file system; `root` is an empty folder."""

    root: Path
    hidden: set[str] = field(default_factory=set)
    saved_bytes: int = 0
    """Bytes of tensors that the program would have saved."""
    saves: dict[str, Any] = field(default_factory=dict)
    """What `torch.save` was given, by path, for a program that loads it again."""

    def twin(self, path: str) -> str:
        """Where the layer keeps the file of an absolute path."""
        return str(self.root) + os.path.abspath(path)

    def is_ours(self, path: str) -> bool:
        """Whether a path needs no redirection."""
        whole = os.path.abspath(path)
        return whole.startswith(UNTOUCHED) or whole == str(self.root) or whole.startswith(f"{self.root}/")

    def for_reading(self, path: Any) -> Any:
        """The path to read from: the layer's where it has one."""
        text = _text(path)
        if text is None or self.is_ours(text):
            return path
        twin = self.twin(text)
        return twin if _exists(twin) or os.path.abspath(text) in self.hidden else path

    def for_writing(self, path: Any, *, copy: bool = False) -> Any:
        """The path to write to; with `copy` the original's content goes there first."""
        text = _text(path)
        if text is None or self.is_ours(text):
            return path
        twin, whole = self.twin(text), os.path.abspath(text)
        parent = os.path.dirname(whole)
        if _exists(parent) or _exists(self.twin(parent)):
            _MAKE_FOLDERS(os.path.dirname(twin), exist_ok=True)
        if copy and not _exists(twin) and whole not in self.hidden and os.path.isfile(text):
            shutil.copyfile(text, twin)
        self.hidden.discard(whole)
        return twin

    def note_saved(self, value: Any) -> None:
        """Count the bytes of all tensors in what was saved."""
        leaves, _ = torch.utils._pytree.tree_flatten(value)  # type: ignore[attr-defined]
        self.saved_bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


_STAT, _MAKE_FOLDERS, _OPEN = os.stat, os.makedirs, io.open


def _text(path: Any) -> str | None:
    """A path as text; None for a file descriptor."""
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None


def _exists(path: str) -> bool:
    try:
        _STAT(path)
    except OSError:
        return False
    return True


def datasets_cache(layer: FileLayer) -> dict[str, str]:
    """Environment that sends new files of the package datasets, which writes below Python, to the layer."""
    cache = layer.root / "datasets-cache"
    cache.mkdir()
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    original = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    for entry in original.iterdir() if original.is_dir() else ():
        (cache / entry.name).symlink_to(entry)
    return {"HF_DATASETS_CACHE": str(cache)}


@contextlib.contextmanager
def writing_to(layer: FileLayer) -> Iterator[None]:
    """Redirect what the program writes to `layer`."""
    replacements = [
        *_openers(layer), *_readers(layer), *_changers(layer), *_tensor_savers(layer)
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _openers(layer: FileLayer) -> list[tuple[Any, str, Any]]:
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if _text(file) is not None:
            writes, keeps = any(letter in mode for letter in "wax+"), "a" in mode or "r" in mode
            if writes and "x" in mode and os.path.exists(file):
                raise FileExistsError(17, "File exists", os.fspath(file))
            file = layer.for_writing(file, copy=keeps) if writes else layer.for_reading(file)
        return _OPEN(file, mode, *args, **kwargs)

    original = os.open

    def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        path = layer.for_writing(path, copy=not flags & os.O_TRUNC) if writes else layer.for_reading(path)
        return original(path, flags, *args, **kwargs)

    return [(builtins, "open", open_file), (io, "open", open_file), (os, "open", open_descriptor)]


def _readers(layer: FileLayer) -> list[tuple[Any, str, Any]]:
    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            return original(layer.for_reading(path), *args, **kwargs)

        return call

    def list_folder(path: Any = ".") -> list[str]:
        if not isinstance(path, str | os.PathLike):
            return original_list(path)
        text = os.fspath(path)
        names = set(original_list(text)) if _exists(text) else set()
        names |= set(original_list(layer.twin(text))) if _exists(layer.twin(text)) else set()
        names = {name for name in names if os.path.abspath(os.path.join(text, name)) not in layer.hidden}
        return sorted(names) if names or _exists(text) or _exists(layer.twin(text)) else original_list(text)

    original_list = os.listdir
    return [
        *((os, name, reading(getattr(os, name))) for name in ("stat", "lstat", "access", "scandir", "statvfs")),
        (os, "listdir", list_folder),
    ]


def _changers(layer: FileLayer) -> list[tuple[Any, str, Any]]:
    make, rename, replace = os.mkdir, os.rename, os.replace

    def make_folder(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
        if os.path.exists(path):
            raise FileExistsError(17, "File exists", os.fspath(path))
        make(layer.for_writing(path), mode)

    def moving(original: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **kwargs: Any) -> None:
            if layer.is_ours(os.fsdecode(source)):
                original(source, layer.for_writing(target))
                return
            ours = layer.for_writing(source, copy=True)
            original(ours, layer.for_writing(target))
            layer.hidden.add(os.path.abspath(os.fsdecode(source)))

        return call

    def removing(original: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, **kwargs: Any) -> None:
            text = _text(path)
            if text is None or layer.is_ours(text) or kwargs:  # relative to a folder's descriptor: not of the program
                original(path, **kwargs)
                return
            os.lstat(text)  # raises where there is nothing
            if _exists(layer.twin(text)):
                original(layer.twin(text))
            layer.hidden.add(os.path.abspath(text))

        return call

    def link(source: Any, target: Any, *_: Any, **__: Any) -> None:
        """A link becomes an empty file: what it leads to stays unchanged."""
        with open(target, "w"):
            pass

    return [
        (os, "mkdir", make_folder), (os, "rename", moving(rename)), (os, "replace", moving(replace)),
        *((os, name, removing(getattr(os, name))) for name in ("remove", "unlink", "rmdir")),
        (os, "symlink", link), (os, "link", link), (os, "chmod", lambda *_, **__: None),
        (os, "utime", lambda *_, **__: None),
    ]  # fmt: skip


def _tensor_savers(layer: FileLayer) -> list[tuple[Any, str, Any]]:
    import safetensors.torch

    load = torch.load

    def save(value: Any, file: Any, *_: Any, **__: Any) -> None:
        layer.note_saved(value)
        if isinstance(file, str | os.PathLike):
            layer.saves[os.path.abspath(os.fspath(file))] = value
            with open(file, "wb"):
                pass

    def load_saved(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and os.path.abspath(os.fspath(file)) in layer.saves:
            return layer.saves[os.path.abspath(os.fspath(file))]
        return load(layer.for_reading(file), *args, **kwargs)

    def save_tensors(tensors: dict[str, Any], filename: Any, *_: Any, **__: Any) -> None:
        save(tensors, filename)

    return [
        (torch, "save", save), (torch, "load", load_saved), (safetensors.torch, "save_file", save_tensors),
        (safetensors.torch, "save_model", lambda model, filename, *_, **__: save(model.state_dict(), filename)),
    ]  # fmt: skip
