"""Python's functions on files, redirected to a layer: opening, asking, listing, changing, importing."""

import builtins
import importlib.machinery
import io
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any

from forerun.virtual.cuda.file_layer import LSTAT, STAT, FileLayer, is_there, path_text

LONGEST_SOCKET_PATH = 107
"""Bytes (unix(7), `sun_path`)."""
Replacement = tuple[Any, str, Any]
"""A module, the name of its function, and what takes its place."""


def file_calls(layer: FileLayer) -> list[Replacement]:
    """Every function that is redirected."""
    kinds = (_openers, _readers, _listers, _changers, _removers, _sockets)
    return [replacement for kind in kinds for replacement in kind(layer)]


def bound_elsewhere(pairs: list[tuple[Any, Any]]) -> list[Replacement]:
    """The same functions under names that other modules bound to them at import: tarfile's and bz2's `open`.

    `pairs` are functions and what takes their place.
    """
    values = {id(original): value for original, value in pairs if callable(original)}
    elsewhere: list[Replacement] = []
    for title, module in list(sys.modules.items()):
        is_source = getattr(module, "__spec__", None) is not None and vars(module).get("__file__") is not None
        if is_source and title.split(".")[0] != "forerun":
            bound = [(name, values[id(value)]) for name, value in vars(module).items() if id(value) in values]
            elsewhere += [(module, name, value) for name, value in bound]
    return elsewhere


class LayerFinder:
    """Imports modules that a program wrote itself: Python's own finders read folders below Python."""

    def __init__(self, layer: FileLayer):
        self._layer = layer

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A module in the layer's twin of a folder of modules; None where it has none."""
        folders = [self._layer.twin(os.path.abspath(entry or ".")) for entry in (sys.path if path is None else path)]
        there = [folder for folder in folders if is_there(folder)]
        importlib.machinery.PathFinder.invalidate_caches()
        return importlib.machinery.PathFinder.find_spec(name, there, target) if there else None


def _openers(layer: FileLayer) -> list[Replacement]:
    original_open, original = io.open, os.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path_text(file) is not None:
            writes, keeps = any(letter in mode for letter in "wax+"), "a" in mode or "r" in mode
            if writes and "x" in mode and os.path.exists(file):
                raise FileExistsError(17, "File exists", os.fspath(file))
            file = layer.for_writing(file, copy=keeps) if writes else layer.for_reading(file)
        return original_open(file, mode, *args, **kwargs)

    def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        path = _whole(path, kwargs)
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        path = layer.for_writing(path, copy=not flags & os.O_TRUNC) if writes else layer.for_reading(path)
        return original(path, flags, *args, **kwargs)

    return [(builtins, "open", open_file), (io, "open", open_file), (os, "open", open_descriptor)]


def _readers(layer: FileLayer) -> list[Replacement]:
    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            return original(layer.for_reading(_whole(path, kwargs)), *args, **kwargs)

        return call

    change_folder = os.chdir

    def enter_folder(path: Any) -> None:
        change_folder(path if path_text(path) is None or is_there(path) else layer.for_reading(path))

    names = ("stat", "lstat", "access", "statvfs", "readlink")
    return [*((os, name, reading(getattr(os, name))) for name in names), (os, "chdir", enter_folder)]


class _Entry:
    """One name in a folder, as `os.scandir` gives it."""

    def __init__(self, layer: FileLayer, folder: str, name: str):
        self.name, self.path = name, os.path.join(folder, name)
        self._real = layer.for_reading(self.path)

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return STAT(self._real) if follow_symlinks else LSTAT(self._real)

    def inode(self) -> int:
        return LSTAT(self._real).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:  # a link that leads nowhere
            return False


class _Entries:
    """Names in a folder, to go through once and to close."""

    def __init__(self, entries: Iterator[_Entry]):
        self._entries = entries

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""


def _listers(layer: FileLayer) -> list[Replacement]:
    list_names, scan = os.listdir, os.scandir

    def list_folder(path: Any = ".") -> list[str]:
        return layer.names_in(os.fspath(path), list_names) if isinstance(path, str | os.PathLike) else list_names(path)

    def scan_folder(path: Any = ".") -> Any:
        if not isinstance(path, str | os.PathLike) or not is_there(layer.twin(os.fspath(path))):
            return scan(path)
        folder = os.fspath(path)
        return _Entries(iter([_Entry(layer, folder, name) for name in layer.names_in(folder, list_names)]))

    return [(os, "listdir", list_folder), (os, "scandir", scan_folder)]


def _changers(layer: FileLayer) -> list[Replacement]:
    make, rename, replace, truncate, symlink = os.mkdir, os.rename, os.replace, os.truncate, os.symlink

    def make_folder(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
        path = _whole(path, kwargs)
        if os.path.lexists(path):
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

    def link(source: Any, target: Any, *_: Any, **__: Any) -> None:
        """A link in the layer to what the program would see there; writing by it goes to the layer again."""
        if os.path.lexists(target):
            raise FileExistsError(17, "File exists", os.fspath(target))
        lead = os.path.join(os.path.dirname(os.path.abspath(os.fsdecode(target))), os.fsdecode(source))
        symlink(layer.for_reading(lead), layer.for_writing(target))

    def hard_link(source: Any, target: Any, *_: Any, **__: Any) -> None:
        link(os.path.abspath(os.fsdecode(source)), target)

    def shorten(path: Any, length: int) -> None:
        truncate(layer.for_writing(path, copy=True), length)

    def leave(path: Any, *_: Any, **kwargs: Any) -> None:
        """Owners, permissions and times stay; where there is nothing it fails, as `Path.touch` expects."""
        os.lstat(_whole(path, kwargs))

    nothing = ((os, name, leave) for name in ("chmod", "chown", "lchown", "utime"))
    return [
        (os, "mkdir", make_folder), (os, "rename", moving(rename)), (os, "replace", moving(replace)),
        (os, "symlink", link), (os, "link", hard_link), (os, "truncate", shorten), *nothing,
    ]  # fmt: skip


def _removers(layer: FileLayer) -> list[Replacement]:
    def removing(original: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, **kwargs: Any) -> None:
            path = _whole(path, kwargs)
            text = path_text(path)
            if text is None or layer.is_ours(text):
                original(path)
                return
            os.lstat(text)  # raises where there is nothing
            if is_there(layer.twin(text)):
                original(layer.twin(text))
            layer.hidden.add(os.path.abspath(text))

        return call

    return [
        *((os, name, removing(getattr(os, name))) for name in ("remove", "unlink", "rmdir")),
        (shutil, "_use_fd_functions", False),  # else rmtree works with the real folder's descriptor
    ]


def _sockets(layer: FileLayer) -> list[Replacement]:
    """Sockets that are files: `multiprocessing` hands tensors and queues to other processes by one in a new folder."""

    def at(original: Callable[..., None], place: Callable[[str], Any]) -> Callable[..., None]:
        def call(own: socket.socket, address: Any) -> None:
            is_file = own.family == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0")
            path = place(address) if is_file else address
            if not is_file or len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
                original(own, path)
                return
            descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                original(own, f"/proc/self/fd/{descriptor}/{os.path.basename(path)}")
            finally:
                os.close(descriptor)

        return call

    return [
        (socket.socket, "bind", at(socket.socket.bind, layer.for_writing)),
        (socket.socket, "connect", at(socket.socket.connect, layer.for_reading)),
    ]


def _whole(path: Any, kwargs: dict[str, Any]) -> Any:
    """A path that may be relative to a folder's descriptor, which `kwargs` then loses; Linux names its folder."""
    folder = kwargs.pop("dir_fd", None)
    text = path_text(path)
    if folder is None or text is None or os.path.isabs(text):
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
