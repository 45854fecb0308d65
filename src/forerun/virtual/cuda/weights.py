"""Pretrained weights have a shape and a dtype, and no values: they are neither read nor downloaded.

Local safetensors files are opened for their header alone. A model of the hub that is not on this disk has the
configuration of the hub, or of the catalogue where the hub cannot be reached, and the tensors of the class that is
loaded. Small tensors and integers of local files are read: tables of them decide which way a program goes.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from forerun.errors import UnknownModel
from forerun.models.catalogue import architecture, hub_is_reachable
from forerun.virtual.cuda.dispatch import LARGE_BYTES
from forerun.virtual.cuda.put_back import replaced_everywhere, swap_everywhere
from forerun.virtual.cuda.unknown import Assumptions

WEIGHT_FILES = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Names of dtypes in the header (safetensors 0.6, README, section Format)."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
"""A safetensors file begins with the length of its header in bytes."""


class HeaderFile:
    """A safetensors file of which only the header is read; the part of `safetensors.safe_open` that loaders call."""

    def __init__(self, filename: Any, *arguments: Any, **options: Any):
        with open(filename, "rb") as file:
            header = json.loads(file.read(LENGTH.unpack(file.read(LENGTH.size))[0]))
        self._metadata = header.pop("__metadata__", None)
        self._entries: dict[str, Any] = header
        self._open: Callable[[], Any] = lambda: _ORIGINALS["safe_open"](filename, framework="pt")

    def __enter__(self) -> "HeaderFile":
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to close."""

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._entries)

    offset_keys = keys

    def metadata(self) -> Any:
        """What the writer noted."""
        return self._metadata

    def get_slice(self, name: str) -> "HeaderSlice":
        """A tensor that is made when it is indexed."""
        return HeaderSlice(self, name, self._entries[name])

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the right shape; with values where it is small."""
        return self.get_slice(name)[...]

    def read(self, name: str) -> torch.Tensor:
        """A tensor with its values."""
        with self._open() as file:
            return file.get_tensor(name)


class HeaderSlice:
    """One tensor of a `HeaderFile`."""

    def __init__(self, file: HeaderFile, name: str, entry: Mapping[str, Any]):
        self._file, self._name, self._entry = file, name, entry

    def get_shape(self) -> list[int]:
        """Lengths of its dimensions."""
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        """The header's name of its dtype."""
        return self._entry["dtype"]

    def __getitem__(self, index: Any) -> torch.Tensor:
        dtype, shape = DTYPES[self.get_dtype()], self.get_shape()
        if dtype.is_floating_point and math.prod(shape) * dtype.itemsize >= LARGE_BYTES:
            return torch.empty(shape, dtype=dtype)[index]
        has_values = self._entry["data_offsets"] is not None
        return self._file.read(self._name)[index] if has_values else torch.zeros(shape, dtype=dtype)[index]


class NoWeights(dict[str, torch.Tensor]):
    """A state dict that any module takes: it changes nothing."""


_ORIGINALS: dict[str, Any] = {}
"""PyTorch's and safetensors' own functions, by name; filled while a program runs."""


@contextlib.contextmanager
def without_reading_weights(folder: Path, assumptions: Assumptions) -> Iterator[None]:
    """Give loaders shapes instead of values; configurations that are not on this disk are written to `folder`."""
    import safetensors
    import safetensors.torch

    def load_file(filename: Any, device: Any = "cpu", **_: Any) -> dict[str, torch.Tensor]:
        with HeaderFile(filename) as file:
            return {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 (no mapping)

    def no_weights(*_: Any, **__: Any) -> NoWeights:
        return NoWeights()

    def load_state_dict(module: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, NoWeights):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return _ORIGINALS["load_state_dict"](module, state_dict, *args, **kwargs)

    hub = HubModels(folder, assumptions)
    with contextlib.ExitStack() as stack:
        replacements = [
            (safetensors, "safe_open", HeaderFile),
            (safetensors.torch, "load_file", load_file),
            (torch.hub, "load_state_dict_from_url", no_weights),
        ]
        _ORIGINALS.update({name: getattr(holder, name) for holder, name, _ in replacements})
        stack.enter_context(replaced_everywhere(replacements))
        _ORIGINALS["load_state_dict"] = torch.nn.Module.load_state_dict
        torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
        stack.callback(setattr, torch.nn.Module, "load_state_dict", _ORIGINALS["load_state_dict"])
        stack.callback(hub.go_online)
        stack.enter_context(_after_import("transformers.utils.hub", hub.answer_downloads))
        stack.enter_context(_after_import("transformers.modeling_utils", hub.watch_loading))
        stack.enter_context(_after_import("timm.models._builder", _skip_timm_weights))
        yield


class HubModels:
    """Configurations and headers of models that are not on this disk."""

    def __init__(self, folder: Path, assumptions: Assumptions):
        self.folder, self.assumptions = folder, assumptions
        self._loading: list[tuple[type, dict[str, Any]]] = []
        self._was_offline: bool | None = None

    def answer_downloads(self, hub: ModuleType) -> Callable[[], None]:
        """Put this in the place of transformers' downloads; returns what undoes it."""
        cached_files, resolve_revision = hub.cached_files, hub.resolve_revision

        def answer(path_or_repo_id: Any, filenames: list[str], **options: Any) -> list[str] | None:
            return self._files(cached_files, str(path_or_repo_id), filenames, options)

        def resolve(*args: Any, **kwargs: Any) -> Any:
            self._is_offline()
            return resolve_revision(*args, **kwargs)

        swap_everywhere(cached_files, answer)
        swap_everywhere(resolve_revision, resolve)

        def undo() -> None:
            swap_everywhere(answer, cached_files)
            swap_everywhere(resolve, resolve_revision)

        return undo

    def watch_loading(self, modeling_utils: ModuleType) -> Callable[[], None]:
        """Note which class is being loaded; returns what undoes it."""
        model_class = modeling_utils.PreTrainedModel
        original = model_class.__dict__["from_pretrained"]

        @classmethod
        @functools.wraps(original.__func__)
        def load(cls: type, name: Any = None, *args: Any, **options: Any) -> Any:
            self._loading.append((cls, options))
            try:
                return original.__func__(cls, name, *args, **options)
            finally:
                self._loading.pop()

        model_class.from_pretrained = load
        return lambda: setattr(model_class, "from_pretrained", original)

    def _is_offline(self) -> bool:
        """Whether the hub cannot be reached; its own client would then try for half a minute."""
        if hub_is_reachable():
            return False
        constants: Any = importlib.import_module("huggingface_hub.constants")
        if self._was_offline is None:
            self._was_offline = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        return True

    def go_online(self) -> None:
        """Leave the client of the hub as it was."""
        if self._was_offline is not None:
            constants: Any = importlib.import_module("huggingface_hub.constants")
            constants.HF_HUB_OFFLINE = self._was_offline

    def _files(
        self, original: Callable[..., Any], name: str, filenames: list[str], options: dict[str, Any]
    ) -> list[str] | None:
        """Paths of files of a model: its own where they are here, else made from its configuration."""
        if Path(name).exists():
            return original(name, filenames, **options)
        is_offline = self._is_offline()
        is_weights = filenames[0].endswith(WEIGHT_FILES)
        if not is_weights and not (is_offline and filenames == ["config.json"]):
            return original(name, filenames, **options)
        try:
            here = original(name, filenames, **(options | {"local_files_only": True}))
        except OSError:
            here = None
        if here is not None:
            return here
        if not is_weights:
            return self._configuration(name)
        return [self._header(name)] if filenames == ["model.safetensors"] and self._loading else None

    def _configuration(self, name: str) -> list[str]:
        from transformers import AutoConfig

        try:
            row = architecture(name, as_typed=False)  # a name that no hub has must fail as it does there
        except UnknownModel as error:  # loaders expect an OSError
            raise OSError(
                f"The configuration of {name!r} is not on this disk, and the hub cannot be reached. {error} "
                "Or give the path of a folder with its config.json."
            ) from error
        path = self._folder(name) / "config.json"
        config = AutoConfig.for_model(row.model_type, **row.config)
        path.write_text(config.to_json_string(use_diff=False), encoding="utf-8")
        self.assumptions.note(f"the configuration of {name}, as the hub cannot be reached", "that of the catalogue")
        return [str(path)]

    def _header(self, name: str) -> str:
        """A safetensors file without data: the loaded class's tensors, in the dtype of its configuration."""
        cls, options = self._loading[-1]
        config = options.get("config")
        if config is None:
            config = cls.config_class.from_pretrained(name)  # type: ignore[attr-defined]
        dtype = getattr(config, "dtype", None)
        if dtype is None:
            self.assumptions.note(f"the dtype of the weights of {name}, which nobody says", "float32")
        with torch.device("meta"):
            tensors = cls(config).state_dict()  # type: ignore[call-arg]
        entries = {
            key: {
                "dtype": NAMES[dtype or tensor.dtype] if tensor.is_floating_point() else NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": None,
            }
            for key, tensor in tensors.items()
        }
        header = json.dumps({"__metadata__": {"format": "pt"}} | entries).encode()
        path = self._folder(name) / f"{cls.__name__}.safetensors"
        path.write_bytes(LENGTH.pack(len(header)) + header)
        return str(path)

    def _folder(self, name: str) -> Path:
        folder = self.folder / name.replace("/", "--")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _skip_timm_weights(builder: ModuleType) -> Callable[[], None]:
    """Pretrained timm models are made with the head that is asked for, and nothing is loaded."""
    original = builder.load_pretrained
    builder.load_pretrained = lambda *_, **__: None  # type: ignore[attr-defined]
    return lambda: setattr(builder, "load_pretrained", original)


class _Patcher(importlib.abc.MetaPathFinder):
    """Finds one module as everybody does, and changes it once it is imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]):
        self._name, self._change = name, change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of that module, whose loader changes it at the end; None for all others."""
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _after_import(name: str, change: Callable[[ModuleType], Callable[[], None]]) -> Iterator[None]:
    """Change a module now if it is imported, else as soon as it is; `change` returns what undoes it."""
    undo: list[Callable[[], None]] = []
    patcher = _Patcher(name, lambda module: undo.append(change(module)))
    if name in sys.modules:
        undo.append(change(sys.modules[name]))
    else:
        sys.meta_path.insert(0, patcher)
    try:
        yield
    finally:
        if patcher in sys.meta_path:
            sys.meta_path.remove(patcher)
        for each in undo:
            each()
