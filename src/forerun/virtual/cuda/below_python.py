"""Libraries that open files below Python, where Python's functions on files are redirected to a layer.

SQLite and the tokenizers library are given the layer's paths. Not covered: other libraries that write below Python
(Arrow, HDF5, OpenCV), and programs that the program starts; where the kernel gives a view of the file system
(`cli/file_wall.py`) all of them are.
"""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.file_layer import FileLayer

READERS = {"Tokenizer": ("from_file",), "BPE": ("from_file", "read_file")}
READERS |= {name: ("from_file", "read_file") for name in ("WordPiece", "WordLevel")}
"""Static methods of tokenizers' classes whose arguments are files (tokenizers 0.22)."""


@contextlib.contextmanager
def redirected_below_python(layer: FileLayer) -> Iterator[None]:
    """Give such libraries the layer's files while the body runs."""
    connect = sqlite3.connect

    def connect_in_layer(database: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else ""
        if text in ("", ":memory:"):
            return connect(database, *args, **kwargs)
        if kwargs.get("uri") and text.startswith("file:"):
            path, mark, query = text.removeprefix("file:").partition("?")
            return connect(f"file:{layer.for_writing(path, copy=True)}{mark}{query}", *args, **kwargs)
        return connect(layer.for_writing(text, copy=True), *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for module in (sqlite3, sys.modules["sqlite3.dbapi2"]):
            stack.callback(setattr, module, "connect", connect)
            module.connect = connect_in_layer  # type: ignore[attr-defined]
        stack.enter_context(after_import("tokenizers", lambda module: _redirect_tokenizers(module, layer)))
        yield


def _redirect_tokenizers(module: ModuleType, layer: FileLayer) -> Callable[[], None]:
    """Let its classes read and write in the layer; what is returned puts them back."""
    undo: list[tuple[type, str, Any]] = []

    def put(owner: type, name: str, value: Any) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def reading(original: Callable[..., Any]) -> Any:
        return staticmethod(lambda *files, **kwargs: original(*map(layer.for_reading, files), **kwargs))

    for name, methods in READERS.items():
        owner = module.Tokenizer if name == "Tokenizer" else getattr(module.models, name)
        for method in methods:
            put(owner, method, reading(getattr(owner, method)))
    save, save_model, train = module.Tokenizer.save, module.models.Model.save, module.Tokenizer.train

    def save_in_layer(tokenizer: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        save(tokenizer, layer.for_writing(path), *args, **kwargs)

    def save_model_in_layer(model: Any, folder: Any, *args: Any, **kwargs: Any) -> list[str]:
        os.makedirs(layer.twin(folder), exist_ok=True)
        files = save_model(model, layer.twin(folder), *args, **kwargs)
        return [os.path.join(folder, os.path.basename(file)) for file in files]

    def train_from_layer(tokenizer: Any, files: Any, *args: Any, **kwargs: Any) -> None:
        paths = [files] if isinstance(files, str | os.PathLike) else files
        train(tokenizer, [layer.for_reading(path) for path in paths], *args, **kwargs)

    put(module.Tokenizer, "save", save_in_layer)
    put(module.models.Model, "save", save_model_in_layer)
    put(module.Tokenizer, "train", train_from_layer)

    def put_back() -> None:
        for owner, name, value in undo:
            setattr(owner, name, value)

    return put_back
