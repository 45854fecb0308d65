"""The Hugging Face configuration of a model, by catalogue name, local directory or hub id.

A name that is no row of the catalogue (`rows.py`) is looked for as a local directory, then on the hub (an id has a
slash in it); when neither has it, it is an error.
"""

import contextlib
import importlib
import json
import re
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forerun.errors import InvalidSettings, UnknownModel, nearest
from forerun.models.config_limits import require_buildable
from forerun.models.guard import cause_of, guarded
from forerun.models.hub_refusals import hub_remedy, pinned
from forerun.models.image_libraries import image_config, libraries_hint, library_name, library_of
from forerun.models.layer_lists import lists_of_depth
from forerun.models.outside_settings import other_task
from forerun.models.published_form import check_published_form
from forerun.models.rows import DIFFUSERS, Architecture, is_folder, nearest_rows, packed_from, row_of
from forerun.models.rows import architecture as architecture
from forerun.models.rows import architectures as architectures
from forerun.models.rows import hub_id as hub_id
from forerun.models.typed_ids import plain_id
from forerun.settings.plain import in_short

HUB_SECONDS = 3.0
LARGEST_CONFIG_BYTES = 16 * 2**20
"""Of a config.json; those with a name for each of 20,000 classes have 1 MB."""
DENOISER_FOLDERS = ("unet", "transformer")
"""Folders of a diffusers pipeline that hold its denoiser."""
HUB_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+(?:@[\w./-]+)?")
"""An id with its owner, or one of the first models, which have none ("distilroberta-base"); a revision behind @."""
NO_SDPA = {"deberta-v2", "gemma2", "longformer"}
"""Model types whose attention has no `scaled_dot_product_attention` form in transformers."""


def model_config(name: str, overrides: Mapping[str, Any], attention: str, image_size: int | None = None) -> Any:
    """The Hugging Face configuration of a catalogue name, local directory or hub id, with `overrides` applied.

    `image_size` (pixels of a side) is for models of timm and torchvision that are built for one size.

    Raises:
        UnknownModel: none of the three.
        InvalidSettings: an override is no field of that configuration.
    """
    require_buildable(overrides, "model.config")
    name = plain_id(name)
    row = row_of(name)
    if row is not None:
        config = _of_row(row)
    elif is_folder(name) and (folder := _with_config(Path(name))) is not None:
        config = _from_folder(folder)
    elif (image_model := library_name(name)) is not None:
        name, config = image_model, image_config(image_model, image_size)
    else:
        config = _from_hub(name)
    _require_fields(config, overrides, "model.config")
    if overrides:
        config = _changed(config, name if row is None else row, overrides)
    config = text_part(config)
    # transformers refuses "sdpa" for classes without it when the model is built, so it is decided here
    eager = attention == "eager" or config.model_type in NO_SDPA or not _has_sdpa(config)
    config._attn_implementation = "eager" if eager else "sdpa"
    for part in (getattr(config, name, None) for name in config.sub_configs):
        if part is not None and not _has_sdpa(part):  # the ear of Gemma 4
            part._attn_implementation = "eager"
    return config


def _require_fields(config: Any, overrides: Mapping[str, Any], place: str) -> None:
    """Refuse what is no field of `config`, in its parts as well.

    Raises:
        InvalidSettings: naming the part that has such a field, or the fields that are spelled like it.
    """
    field_names = {*config.to_dict(), *config.attribute_map, "num_labels", "rope_theta"}
    parts = {name: part for name in config.sub_configs if (part := getattr(config, name, None)) is not None}
    for field, value in overrides.items():
        if field in parts and isinstance(value, Mapping):
            _require_fields(parts[field], value, f"{place}.{field}")
        elif field not in field_names:
            owners = [name for name, part in parts.items() if field in part.to_dict() or field in part.attribute_map]
            raise InvalidSettings(
                f"{place}.{field}: no field of {type(config).__name__}. "
                + (
                    f"Its {' and '.join(owners)} have one: write {owners[0]}: {{{field}: {in_short(value)}}}."
                    if owners
                    else f"Nearest: {nearest(field, sorted(field_names))}."
                )
            )


def _of_row(row: Architecture) -> Any:
    if row.model_type == DIFFUSERS:
        from forerun.models.denoiser import denoiser_config

        return denoiser_config(row.fields)
    return transformers_config(row)


def transformers_config(row: Architecture) -> Any:
    """The configuration of a row that transformers builds.

    Raises:
        UnknownModel: the installed transformers is older than the architecture.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if row.model_type not in CONFIG_MAPPING:
        raise UnknownModel(
            f"model.name: {row.name} is of the type {row.model_type}, which transformers {transformers.__version__} "
            f"does not have. Install a newer one: pip install --upgrade transformers."
        )
    return transformers.AutoConfig.for_model(row.model_type, **row.fields)


def _with_config(folder: Path) -> Path | None:
    """The folder itself, or the denoiser's in that of a diffusers pipeline; None where none has a configuration."""
    places = (folder, *(folder / part for part in DENOISER_FOLDERS))
    return next((place for place in places if (place / "config.json").exists()), None)


def text_part(config: Any) -> Any:
    """The part of a configuration of text and images that AutoModelForCausalLM builds, where it builds that alone."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    # transformers/models/auto/auto_factory.py:236-242 (5.23): so for Qwen 3.5 and Llama 4, not for Gemma 3; the part of
    # Llama 3.2 Vision is no type that it builds
    part = config.sub_configs.get("text_config")
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if (
        part is None
        or getattr(model_class, "config_class", None) is not part
        or part not in MODEL_FOR_CAUSAL_LM_MAPPING
    ):
        return config
    return config.get_text_config()


def _has_sdpa(config: Any) -> bool:
    """Whether transformers has the model with `scaled_dot_product_attention`; not so MPT, Bloom, Mamba and TrOCR."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    model_class = None
    with contextlib.suppress(ValueError):  # 5.24 lists a class for a part of Voxtral Realtime that it does not have
        model_class = MODEL_MAPPING.get(type(config), None) or MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    classes = [model_class] if model_class is not None else _classes_beside(type(config))
    return all(getattr(each, "_supports_sdpa", True) for each in classes)


def _classes_beside(config_class: type) -> list[type]:
    """Models of a configuration that neither list names: heads alone (PP-LCNet), parts of others."""
    module = None
    with contextlib.suppress(ImportError):
        module = importlib.import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    return (
        [
            each
            for each in vars(module).values()
            if isinstance(each, type) and getattr(each, "config_class", None) is config_class
        ]
        if module is not None
        else []
    )


def _from_folder(folder: Path) -> Any:
    """The configuration in a local directory; code beside it is never run."""
    from transformers import AutoConfig

    file = folder / "config.json"
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise UnknownModel(f"model.name: {file} has more than {LARGEST_CONFIG_BYTES // 2**20} MiB: no config.")
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnknownModel(f"model.name: {file} is no JSON: {cause_of(error)}. Save the model again.") from error
    if isinstance(stated, dict) and "_class_name" in stated:
        from forerun.models.denoiser import denoiser_config, fields_stated

        require_buildable(stated, str(file))
        return denoiser_config(fields_stated(stated, file))
    if not isinstance(stated, dict) or not isinstance(stated.get("model_type"), str):
        raise UnknownModel(
            f"model.name: {file} is no configuration of transformers; found no text under model_type. Give a folder "
            f"that save_pretrained wrote."
        )
    require_buildable(stated, str(file))
    _refuse_own_code(stated, str(folder))
    with guarded(UnknownModel, f"model.name: {file} is no configuration that transformers takes", "Correct the file."):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_published_form(config, stated, str(folder))
    return config


def _refuse_own_code(stated: Mapping[str, Any], name: str) -> None:
    """Refuse a model whose architecture is code that comes with it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if "auto_map" in stated and stated.get("model_type") not in CONFIG_MAPPING:
        raise UnknownModel(
            f"model.name: the architecture of {name} is code of its own (auto_map, model_type="
            f"{in_short(stated.get('model_type'))}), which forerun never runs. To forecast it by choice, put the "
            f"training script that loads it under forerun exec."
        )


def _changed(config: Any, origin: "str | Architecture", overrides: Mapping[str, Any]) -> Any:
    """The configuration made anew with `overrides`, so that what follows from a field (a head's size) follows it."""
    if config.model_type == DIFFUSERS:
        stated = config.to_dict()
    elif isinstance(origin, Architecture):
        stated = {"model_type": origin.model_type, **origin.fields}
    elif library_of(origin):  # nothing of these follows from another field; a timm configuration drops what it is told
        for field, value in overrides.items():
            setattr(config, field, value)
        return config
    else:
        identity, revision = (origin, None) if is_folder(origin) else pinned(origin)
        stated, _ = type(config).get_config_dict(  # it was read a moment ago
            identity, revision=revision or "main", local_files_only=True
        )
    overrides = _completed(config, stated, overrides)
    fields = ", ".join(f"{name}={in_short(value)}" for name, value in overrides.items())
    with guarded(
        InvalidSettings, f"model.config: fields of {type(config).__name__} that agree; found {fields}", "Change them."
    ):
        return type(config).from_dict({**stated, **overrides})


def _completed(config: Any, stated: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` of such a configuration and what follows: a part of it keeps the other fields that are `stated`."""
    depth_field = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    whole = {**overrides, **lists_of_depth(stated, depth_field, overrides)}
    for name in config.sub_configs:
        part, before, changes = getattr(config, name, None), stated.get(name), overrides.get(name)
        if part is not None and isinstance(before, Mapping) and isinstance(changes, Mapping):
            whole[name] = {**before, **_completed(part, before, changes)}
    return whole


@cache
def hub_is_reachable() -> bool:
    """Whether the Hugging Face hub's host answers; asked once, since its own client retries for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    host = urlsplit(constants.ENDPOINT)
    port = host.port or (80 if host.scheme == "http" else 443)
    try:
        socket.create_connection((host.hostname, port), timeout=HUB_SECONDS).close()
    except OSError:
        return False
    return True


def _from_hub(name: str) -> Any:
    from transformers import AutoConfig

    close, online = nearest_rows(name), hub_is_reachable()
    instead = f"{packed_from(name)}{other_task(name)}Nearest in the catalogue: {close}."
    if not HUB_ID.fullmatch(name) or ("/" not in name and not online):
        raise UnknownModel(
            f"model.name: {in_short(name)} is neither in the catalogue nor a directory with a config.json nor a hub "
            f"id. {packed_from(name)}{other_task(name)}Nearest: {close}.{libraries_hint()}"
        )
    identity, revision = pinned(name)
    source = {"revision": revision or "main", "local_files_only": not online}
    with guarded(
        UnknownModel,
        f"model.name: {name!r} is not in the catalogue, and the Hugging Face hub could not give it",
        lambda error: hub_remedy(error, name, instead),
    ):
        config = AutoConfig.from_pretrained(identity, trust_remote_code=False, **source)
        stated, _ = type(config).get_config_dict(identity, **source)
    require_buildable(config.to_diff_dict(), name)
    check_published_form(config, stated, name)
    return config
