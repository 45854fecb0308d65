"""Pretrained weights have a shape and a dtype, and no values: they are neither read nor downloaded.

Local safetensors files are opened for their header alone. A model of the hub that is not on this disk has the
configuration of the hub, or of the catalogue where the hub cannot be reached, and the tensors of the class that is
loaded. Small tensors and integers of local files are read: tables of them decide which way a program goes.
"""

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from forerun.errors import UnknownModel
from forerun.models.catalogue import architecture, hub_is_reachable, transformers_config
from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.tensor_files import HeaderFile, load_tensors, tensor_file
from forerun.virtual.cuda.unknown import Assumptions
from forerun.virtual.put_back import replaced, replaced_everywhere, swap_everywhere

WEIGHT_FILES = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")

SIXTEEN_BITS_FROM = 10**9
"""Elements from which decoders are published in 16 bits: all 86 configurations that aiconfigurator-core 0.12.0 has with
a dtype, of 0.6 to 1,000 billion, say bfloat16. Older models differ, so that it is noted as assumed."""


class NoWeights(dict[str, torch.Tensor]):
    """A state dict that any module takes: it changes nothing."""


_ORIGINALS: dict[str, Any] = {}
"""PyTorch's own functions, by name; filled while a program runs."""


@contextlib.contextmanager
def without_reading_weights(folder: Path, assumptions: Assumptions) -> Iterator[None]:
    """Give loaders shapes instead of values; configurations that are not on this disk are written to `folder`."""
    import safetensors
    import safetensors.torch

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
            (safetensors.torch, "load_file", load_tensors),
            (safetensors.torch, "load", lambda data: dict(HeaderFile(io.BytesIO(data)).items())),
            (torch.hub, "load_state_dict_from_url", no_weights),
        ]
        stack.enter_context(replaced_everywhere(replacements))
        _ORIGINALS["load_state_dict"] = torch.nn.Module.load_state_dict
        stack.enter_context(replaced(torch.nn.Module, "load_state_dict", load_state_dict))
        stack.callback(hub.go_online)
        stack.enter_context(after_import("transformers.utils.hub", hub.answer_downloads))
        stack.enter_context(after_import("transformers.modeling_utils", hub.watch_loading))
        stack.enter_context(after_import("timm.models._builder", _skip_timm_weights))
        yield


class HubModels:
    """Configurations and headers of models that are not on this disk."""

    def __init__(self, folder: Path, assumptions: Assumptions):
        self.folder, self.assumptions = folder, assumptions
        self._loading: list[tuple[type, dict[str, Any]]] = []
        self._was_offline: bool | None = None

    def answer_downloads(self, hub: ModuleType) -> Callable[[], None]:
        """Put this in the place of transformers' downloads; returns what undoes it.

        A release before 4.50 has no `cached_files`, and its downloads are left alone; many have no `resolve_revision`.
        """
        cached_files: Any = getattr(hub, "cached_files", None)
        resolve_revision: Any = getattr(hub, "resolve_revision", None)

        def answer(path_or_repo_id: Any, filenames: list[str], **options: Any) -> list[str] | None:
            return self._files(cached_files, str(path_or_repo_id), filenames, options)

        def resolve(*args: Any, **kwargs: Any) -> Any:
            self._is_offline()
            return resolve_revision(*args, **kwargs)

        swaps = [(old, new) for old, new in ((cached_files, answer), (resolve_revision, resolve)) if old is not None]
        for old, new in swaps:
            swap_everywhere(old, new)

        def undo() -> None:
            for old, new in swaps:
                swap_everywhere(new, old)

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
        try:
            row = architecture(name, as_typed=False)  # a name that no hub has must fail as it does there
            config = transformers_config(row)
        except UnknownModel as error:  # loaders expect an OSError
            raise OSError(
                f"The configuration of {name!r} is not on this disk, and the hub cannot be reached. {error} "
                "Or give the path of a folder with its config.json."
            ) from error
        path = self._folder(name) / "config.json"
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id  # published T5s: their decoder starts with padding
        path.write_text(config.to_json_string(use_diff=False), encoding="utf-8")
        self.assumptions.note(f"the configuration of {name}, as the hub cannot be reached", "that of the catalogue")
        return [str(path)]

    def _header(self, name: str) -> str:
        """A safetensors file without data: the loaded class's tensors, in the dtype of its configuration."""
        cls, options = self._loading[-1]
        config = options.get("config")
        if config is None:
            config = cls.config_class.from_pretrained(name)  # type: ignore[attr-defined]
        with torch.device("meta"):
            tensors = cls(config).state_dict()  # type: ignore[call-arg]
        dtype = getattr(config, "dtype", None)
        if dtype is None:
            dtype = _usual_dtype(config, sum(tensor.numel() for tensor in tensors.values()))
            self.assumptions.note(
                f"the dtype of the weights of {name}, which nobody says", str(dtype).removeprefix("torch.")
            )
        path = self._folder(name) / f"{cls.__name__}.safetensors"
        path.write_bytes(tensor_file(tensors, {"format": "pt"}, dtype))
        return str(path)

    def _folder(self, name: str) -> Path:
        folder = self.folder / name.replace("/", "--")
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _usual_dtype(config: Any, elements: int) -> torch.dtype:
    """What weights are published in where a configuration does not say."""
    is_large_decoder = elements >= SIXTEEN_BITS_FROM and not config.is_encoder_decoder
    return torch.bfloat16 if is_large_decoder else torch.float32


def _skip_timm_weights(builder: ModuleType) -> Callable[[], None]:
    """Pretrained timm models are made with the head that is asked for, and nothing is loaded."""
    original = builder.load_pretrained
    builder.load_pretrained = lambda *_, **__: None  # type: ignore[attr-defined]
    return lambda: setattr(builder, "load_pretrained", original)
