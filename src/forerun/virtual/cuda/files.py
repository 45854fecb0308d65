"""A forecast never harms the real thing: what a program writes goes to a temporary layer and is thrown away.

Where the kernel throws all of it away (`cli/file_wall.py`), there is nothing to redirect but what holds tensors.
Elsewhere Python's own file functions are redirected while the program runs: a file opened for writing is one of the
layer (a copy of the original where it is changed), a deleted one is only hidden, and reading looks into the layer
first. Existing files stay as they are; programs that the program starts are then not covered. `torch.save` and
safetensors write below Python, so they are answered here: bytes are counted and a mark (`saves.py`) or a header
(`tensor_files.py`) is written.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from forerun.virtual.cuda.below_python import redirected_below_python
from forerun.virtual.cuda.file_calls import LayerFinder, bound_elsewhere, file_calls
from forerun.virtual.cuda.file_layer import FileLayer, WrittenFiles
from forerun.virtual.cuda.saves import WIDTH, is_mark
from forerun.virtual.cuda.tensor_files import tensor_file

TRACKERS_OFF = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "CLEARML_OFFLINE_MODE": "1", "TRACKIO_MODE": "offline",
}  # fmt: skip
"""Environment that turns off what would tell others of a run."""
HUB_FOLDERS = (
    "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_XET_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE",
    "HF_EVALUATE_CACHE", "HF_METRICS_CACHE",
)  # fmt: skip
"""Environment that names folders of the hub's client outside of HF_HOME."""
BUILDS = "TORCH_EXTENSIONS_DIR"
"""Environment that names the folder of extensions that a program compiles (torch/utils/cpp_extension.py, 2.13)."""


def quiet_environment(layer: FileLayer, files: WrittenFiles) -> dict[str, str]:
    """Environment in which nobody else is told of a run, and new files of the hub go where the others go."""
    if files is WrittenFiles.KEPT:
        return {}
    return TRACKERS_OFF | (hub_caches(layer) if files is WrittenFiles.LAYER else {})


def hub_caches(layer: FileLayer) -> dict[str, str]:
    """Environment that sends new files of the hub's client, and what compilers build, to the layer.

    Compilers, tokenizers, Arrow and the client's own downloader read and write below Python, so the files must really
    be there. Default: huggingface_hub/constants.py (2.4).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folders = {"HF_HOME": os.environ.get("HF_HOME", str(cache / "huggingface"))}
    folders |= {name: os.environ[name] for name in HUB_FOLDERS if name in os.environ}
    for name, original in folders.items():
        _mirror(Path(original).expanduser(), layer.root / name)
    return {name: str(layer.root / name) for name in folders} | {BUILDS: str(layer.root / BUILDS)}


def _mirror(original: Path, twin: Path) -> None:
    """Folders like the original's, with links to its files: what is added to them does not change it."""
    twin.mkdir()
    for folder, names, files in os.walk(original):
        there = twin / os.path.relpath(folder, original)
        for name in names:
            (there / name).mkdir()
        for name in files:
            (there / name).symlink_to(os.path.abspath(os.path.join(folder, name)))


@contextlib.contextmanager
def writing_to(layer: FileLayer, files: WrittenFiles = WrittenFiles.LAYER) -> Iterator[None]:
    """Redirect what the program writes to `layer`; where all is thrown away, or kept, what holds tensors alone."""
    if files is WrittenFiles.KEPT:
        yield
        return
    is_layered = files is WrittenFiles.LAYER
    replacements = [*(file_calls(layer) if is_layered else ()), *_tensor_savers(layer)]
    pairs = [(getattr(owner, name), value) for owner, name, value in replacements]
    with contextlib.ExitStack() as stack:
        stack.callback(_put_back, pairs)
        for owner, name, value in [*replacements, *bound_elsewhere(pairs)]:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        if is_layered:
            finder: Any = LayerFinder(layer)
            sys.meta_path.append(finder)
            stack.callback(sys.meta_path.remove, finder)
            stack.enter_context(redirected_below_python(layer))
        yield


def _put_back(pairs: list[tuple[Any, Any]]) -> None:
    """Modules that the program imported have bound what took the place of a function."""
    for module, name, value in bound_elsewhere([(value, original) for original, value in pairs]):
        setattr(module, name, value)


def _tensor_savers(layer: FileLayer) -> list[tuple[Any, str, Any]]:
    import safetensors.torch

    load = torch.load

    def save(value: Any, file: Any, *_: Any, **__: Any) -> None:
        layer.note_saved(value)
        content = layer.saves.put(value)
        if isinstance(file, str | os.PathLike):
            with open(file, "wb") as target:
                target.write(content)
        else:
            file.write(content)

    def load_saved(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        content = _beginning(file)
        if is_mark(content):
            return layer.saves.get(content, map_location)
        return load(layer.for_reading(file), map_location, *args, **kwargs)

    def as_tensor_file(tensors: dict[str, Any], metadata: Any = None) -> bytes:
        layer.note_saved(tensors)
        return tensor_file(tensors, metadata)

    def save_tensors(tensors: dict[str, Any], filename: Any, metadata: Any = None, **_: Any) -> None:
        with open(filename, "wb") as target:
            target.write(as_tensor_file(tensors, metadata))

    def save_model(model: torch.nn.Module, filename: Any, metadata: Any = None, *_: Any, **__: Any) -> None:
        save_tensors(model.state_dict(), filename, metadata)

    return [
        (torch, "save", save), (torch, "load", load_saved), (safetensors.torch, "save", as_tensor_file),
        (safetensors.torch, "save_file", save_tensors), (safetensors.torch, "save_model", save_model),
    ]  # fmt: skip


def _beginning(file: Any) -> bytes:
    """The first bytes of a file, from its path or where a program has it open."""
    if isinstance(file, str | os.PathLike):
        try:
            with open(file, "rb") as source:
                return source.read(WIDTH)
        except OSError:
            return b""  # the real function says what is wrong
    position = file.tell()
    content = file.read(WIDTH)
    file.seek(position)
    return content
