"""A trained model as files that others read: transformers' or peft's folder, or weights with their settings.

- `adapter`: peft's folder. Every matrix of the adapter must be in it, with its bytes, and not all zero: adapters that
  were saved empty are a known disaster.
- `merged`: adapter and base as one plain model; quantised layers are dequantised first, and the update is added at the
  precision of the dequantised weight, not quantised again.
- `model`: what was trained whole.

A model of transformers becomes its folder; any other one `model.safetensors`. `forerun.json` beside them says what it
is, so that `load_exported` builds it again. Whether the copy still scores as the original is asked by
`runs/export.py`.
"""

import copy
import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from forerun.errors import BadData, NotSupported
from forerun.settings.load import settings_from
from forerun.settings.schema import AdapterSettings, Settings
from forerun.step.build import prepare_model
from forerun.step.workload import Workload
from forerun.train.loop import seed_everything

SCHEMA, DESCRIPTION, WEIGHTS = "forerun.export/1", "forerun.json", "model.safetensors"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
Kind = Literal["adapter", "merged", "model"]


def write_export(model: nn.Module, settings: Settings, folder: Path, kind: Kind) -> None:
    """Write `model` of a run with `settings` into the empty `folder`.

    Raises:
        NotSupported: `kind` does not go with the settings.
        BadData: an adapter's file lacks a matrix, or all of it is zero.
    """
    has_adapter = settings.adapter.kind != "none"
    if has_adapter == (kind == "model"):
        raise NotSupported(
            f"export: a run {'with' if has_adapter else 'without'} an adapter is exported as "
            f"{'adapter or merged' if has_adapter else 'model'}; found {kind!r}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "adapter":
        model.save_pretrained(folder)  # type: ignore[operator]
        require_whole_adapter(model, folder / ADAPTER_WEIGHTS)
    else:
        plain = merged(model) if kind == "merged" else model
        _write_plain(plain, folder)
    description = {"schema": SCHEMA, "kind": kind, "settings": settings.model_dump(mode="json")}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2))


def load_exported(folder: Path, workload: Workload) -> tuple[Settings, nn.Module]:
    """The exported model, read back from `folder` alone (an adapter's base is built as for its run), on the CPU.

    Its settings are those of the run, without what has been merged.

    Raises:
        BadData: no export is there, or its weights do not fit the model.
    """
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
        settings, kind = settings_from(description["settings"]), description["kind"]
    except (OSError, KeyError, ValueError) as error:
        raise BadData(
            f"{folder}: no export of this program: {error}. Name a folder that forerun export wrote."
        ) from error
    if kind == "adapter":
        seed_everything(settings.seed)  # a base without pretrained weights is that of its seed
        return settings, _with_adapter(prepare_model(settings, workload, pretrained=True), folder)
    plain = settings.model_copy(update={"adapter": AdapterSettings(), "quantization": "none"})
    if (folder / "config.json").exists():
        own = plain.model_copy(update={"model": plain.model.model_copy(update={"name": str(folder), "config": {}})})
        return plain, prepare_model(own, workload, pretrained=True)
    model = prepare_model(plain, workload, pretrained=False)
    stored = load_file(folder / WEIGHTS)
    wrong = model.load_state_dict(stored, strict=False)
    filled = {id(tensor) for name, tensor in model.state_dict(keep_vars=True).items() if name in stored}
    missing = [n for n, tensor in model.state_dict(keep_vars=True).items() if id(tensor) not in filled]
    other = [*wrong.unexpected_keys, *missing]
    if other:
        raise BadData(f"{folder / WEIGHTS}: other tensors than the model's: {other[:3]}. Export the run again.")
    return plain, model


def require_whole_adapter(model: nn.Module, file: Path) -> None:
    """Check the file of an adapter: all of its matrices with all of their bytes, and something in them.

    Raises:
        BadData: bytes are missing, or every matrix that starts from zero still is.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    trained_bytes = sum(p.numel() * p.element_size() for p in trained.values())
    tensors = load_file(file) if file.exists() else {}
    stored_bytes = sum(t.numel() * t.element_size() for t in tensors.values())
    if stored_bytes < trained_bytes:
        raise BadData(
            f"{file}: the adapter has {len(trained)} trained matrices of {trained_bytes:,} bytes; found "
            f"{len(tensors)} of {stored_bytes:,} bytes in the file. It was not saved whole; do not use it."
        )
    # peft/tuners/lora/layer.py (0.21), reset_lora_parameters: B starts from zero, A does not
    starts_from_zero = [t for name, t in tensors.items() if "lora_B" in name or "lora_embedding_B" in name]
    if starts_from_zero and not any(bool(t.any()) for t in starts_from_zero):
        raise BadData(f"{file}: every matrix B of the adapter is zero, so it changes nothing. Nothing was trained.")


def merged(model: nn.Module) -> nn.Module:
    """A plain copy of a model with adapters: dequantised, the updates added."""
    model = copy.deepcopy(model)
    _dequantise(model)
    plain: nn.Module = model.merge_and_unload()  # type: ignore[operator]
    # peft/tuners/lora/model.py (0.21) chooses bitsandbytes' layers by these flags; the weights are plain now
    for name in ("is_loaded_in_4bit", "is_loaded_in_8bit"):
        if hasattr(plain, name):
            delattr(plain, name)
    return plain


def _dequantise(model: nn.Module) -> None:
    """Every layer of bitsandbytes becomes a linear layer, and an adapter around one peft's plain adapter."""
    from peft.tuners.lora import Linear as LoraLinear
    from peft.utils.integrations import dequantize_module_weight

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(getattr(child, "weight", None)).__name__ not in ("Params4bit", "Int8Params"):
                continue
            if hasattr(child, "base_layer"):  # an adapter shows its base's weight as its own
                continue
            setattr(parent, name, _linear(child, dequantize_module_weight(child)))
    for module in model.modules():
        if hasattr(module, "lora_A") and type(module).__module__.endswith("lora.bnb"):
            module.__class__ = LoraLinear


def _linear(layer: Any, weight: torch.Tensor) -> nn.Linear:
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias is not None, device=weight.device)
    plain.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return plain


def _write_plain(model: nn.Module, folder: Path) -> None:
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        model.config.use_cache = True  # off while training
        generation = getattr(model, "generation_config", None)  # what `generate` goes by; encoders have none
        if generation is not None:
            generation.use_cache = True
        model.save_pretrained(folder)
        return
    pointers: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in pointers or not tensor.numel():  # a shared tensor once
            pointers.add(tensor.data_ptr())
            tensors[name] = tensor.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS)


def _with_adapter(model: nn.Module, folder: Path) -> nn.Module:
    from peft import set_peft_model_state_dict

    wrong = set_peft_model_state_dict(model, load_file(folder / ADAPTER_WEIGHTS))
    if wrong.unexpected_keys:
        raise BadData(
            f"{folder / ADAPTER_WEIGHTS}: matrices that the model has no place for: {wrong.unexpected_keys[:3]}. "
            f"Export the run again."
        )
    return model
