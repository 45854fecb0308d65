"""Model classes of transformers that have a head to train: every one that an `AutoModelFor…` mapping names.

Batches follow the names of the parameters of `forward` and the fields of the configuration. Several shapes are tried;
the CPU decides which is right.
"""

import inspect
import os
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.zoo_libraries.example import Example
from benchmarks.zoo_libraries.shrink import SIZES, Size, shrunk
from torch import nn

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: E402

NO_HEAD = {"BACKBONE", "TEXT_ENCODING", "IMAGE"}
"""Mappings of models that are parts of others."""
BATCH, LENGTH, CLASSES, BOXES, LARGEST_IDS = 2, 32, 2, 3, 100
MOST_PARAMETERS = 300_000_000
PIXELS, FRAMES, SAMPLES, SPECTRA = 224, 8, 16_000, 128


def names() -> list[str]:
    """Every class with a head, as `model_type:Class:TASK`."""
    classes: dict[str, tuple[str, str]] = {}
    ranks: dict[str, tuple[bool, bool]] = {}
    for mapping in dir(modeling_auto):
        task = mapping.removeprefix("MODEL_FOR_").removesuffix("_MAPPING_NAMES")
        if not (mapping.startswith("MODEL_FOR_") and mapping.endswith("_MAPPING_NAMES")) or task in NO_HEAD:
            continue
        for kind, value in getattr(modeling_auto, mapping).items():
            for name in value if isinstance(value, list | tuple) else [value]:
                own = name.startswith(CONFIG_MAPPING_NAMES.get(kind, "?").removesuffix("Config"))
                rank = own, task != "PRETRAINING"
                if name not in classes or rank > ranks[name]:
                    classes[name], ranks[name] = (kind, task), rank
    return sorted(f"{kind}:{name}:{task}" for name, (kind, task) in classes.items())


def family(name: str) -> str:
    """Classes of one module, which are imported together."""
    return name.split(":")[0]


def examples(name: str) -> Iterator[Example]:
    """Small twins of one class with batches, the likeliest first."""
    kind, class_name, task = name.split(":")
    model_class = getattr(transformers, class_name)
    config_class = getattr(model_class, "config_class", None) or CONFIG_MAPPING[kind]
    shapes = ("with labels", "labels, other layout", "without labels", "other layout")
    for size in SIZES:
        broken: list[bool] = []  # a size that cannot be built needs no further batch

        def build(size: Size = size, broken: list[bool] = broken) -> nn.Module:
            broken.append(True)
            model = _build(model_class, config_class, size)
            broken.clear()
            return model

        for shape in (*(("image, with labels",) if task in IMAGE_AND_LANGUAGE else ()), *shapes):
            note = f"{size.layers} layers, {'narrow' if size.narrow else 'full width'}, {shape}"
            yield Example(build, lambda model, shape=shape: _batch(model, task, shape), note=note)
            if broken:
                break


def _build(model_class: Any, config_class: Any, size: Size) -> nn.Module:
    config = config_class.from_dict(shrunk(config_class().to_dict(), size))
    if getattr(config, "vocab_size", 0) is None:  # of the tokenizer that a script would make
        config.vocab_size = LARGEST_IDS
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id
    with torch.device("meta"):
        try:
            parameters = sum(p.numel() for p in model_class(config).parameters())
        except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError):
            parameters = 0
    if parameters > MOST_PARAMETERS:
        raise MemoryError(f"{parameters:,} parameters are too many for this benchmark")
    return model_class(config)


def _field(config: Any, *names: str) -> Any:
    """A field of the configuration or, where it is missing, of its parts."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    parts = [getattr(config, part, None) for part in getattr(config, "sub_configs", {})]
    return next((value for part in parts if part is not None and (value := _field(part, *names)) is not None), None)


class _Inputs:
    """Tensors by parameter name, for one model."""

    def __init__(self, config: Any, task: str, shape: str):
        self.config, self.task = config, task
        self.with_labels, self.other = "labels" in shape and "without" not in shape, "other" in shape
        text = getattr(config, "get_text_config", lambda: config)()
        self.vocabulary = int(_field(text, "vocab_size") or 1000)
        size = _field(config, "image_size") or PIXELS
        size = size if isinstance(size, list | tuple) else [size, size]
        self.height, self.width = (PIXELS if not each or each > 512 else int(each) for each in size[:2])
        self.channels = int(_field(config, "num_channels", "in_channels", "in_chans") or 3)

    def ids(self, *shape: int) -> torch.Tensor:
        """Token ids that are not special, and an end."""
        ids = torch.randint(5, min(LARGEST_IDS, self.vocabulary), shape)
        end = _field(self.config, "eos_token_id")
        if isinstance(end, int):
            ids[..., -1] = end
        return ids

    def image(self, *frames: int) -> torch.Tensor:
        """Images, or videos where the task has frames."""
        if self.task == "VIDEO_CLASSIFICATION":
            frames = (int(_field(self.config, "num_frames") or FRAMES),)
        return torch.randn(BATCH, *frames, self.channels, self.height, self.width)

    def sound(self) -> torch.Tensor:
        """Waves, or spectra as (time, bins)."""
        spectrum = int(_field(self.config, "max_length") or 1024), int(_field(self.config, "num_mel_bins") or 128)
        return torch.randn(BATCH, *(spectrum if self.other else (SAMPLES,)))

    def features(self) -> torch.Tensor:
        """Spectra of sound, as (bins, time) or (time, bins)."""
        bins = int(
            _field(self.config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_dim")
            or 80
        )
        time = 2 * int(_field(self.config, "max_source_positions") or SPECTRA // 2)
        return torch.randn(BATCH, time, bins) if self.other else torch.randn(BATCH, bins, time)


def _batch(model: nn.Module, task: str, shape: str) -> dict[str, Any]:
    """What `forward` needs, by the names of its parameters."""
    config: Any = model.config
    make, accepts = _Inputs(config, task, shape), inspect.signature(model.forward).parameters
    choices = (BATCH, 2) if task == "MULTIPLE_CHOICE" else (BATCH,)
    main = getattr(model, "main_input_name", "input_ids")
    makers = {
        "input_ids": lambda: make.ids(*choices, LENGTH),
        "pixel_values": make.image,
        "pixel_values_videos": lambda: make.image(int(_field(config, "num_frames", "frames_per_clip") or FRAMES)),
        "input_values": make.sound,
        "input_features": make.features,
        "past_values": lambda: torch.randn(BATCH, *_series(config)),
        "bbox": lambda: torch.tensor([0, 0, 10, 10]).expand(BATCH, LENGTH, 4).clone(),
        "decoder_input_ids": lambda: make.ids(BATCH, LENGTH // 2),
    }  # fmt: skip
    needed = {name for name, p in accepts.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    if "input_ids" in accepts:
        needed |= {"input_ids"}
    needed |= {name for name in ("pixel_values",) if name in accepts and task in IMAGE_AND_TEXT}
    needed |= {main} | ({"bbox"} & set(accepts))
    if not make.with_labels or task not in HAS_OWN_DECODER_INPUT:
        needed |= {"decoder_input_ids"} & set(accepts) if getattr(config, "is_encoder_decoder", False) else set()
    batch = {name: makers[name]() for name in needed if name in makers and name in accepts}
    if "input_ids" in batch and "attention_mask" in accepts:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if "image" in shape:
        batch |= _with_image_tokens(model, make)
    return batch | (_labels(make, task, accepts, batch) if make.with_labels else {})


IMAGE_AND_LANGUAGE = {"MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT"}
IMAGE_AND_TEXT = {
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "VISUAL_QUESTION_ANSWERING",
    "RETRIEVAL",
}
HAS_OWN_DECODER_INPUT = {
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "QUESTION_ANSWERING",
    "SEQUENCE_CLASSIFICATION",
    "PRETRAINING",
    "MASKED_LM",
}


def _with_image_tokens(model: Any, make: _Inputs) -> dict[str, Any]:
    """Images, and a text that has as many image tokens as the model makes of them."""
    pixels, token = make.image(), _field(model.config, "image_token_id", "image_token_index")
    if token is None or not hasattr(model, "get_image_features"):
        return {"pixel_values": pixels}
    with torch.no_grad():
        features = model.get_image_features(pixel_values=pixels)
    features = getattr(features, "pooler_output", features)
    rows = sum(each.shape[:-1].numel() for each in (features if isinstance(features, list | tuple) else [features]))
    ids = torch.cat([torch.full((BATCH, rows // BATCH), token), make.ids(BATCH, LENGTH)], dim=1)
    return {"pixel_values": pixels, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _series(config: Any) -> tuple[int, ...]:
    length = int(_field(config, "context_length") or LENGTH)
    channels = int(_field(config, "num_input_channels") or 1)
    return length, channels


def _labels(make: _Inputs, task: str, accepts: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Labels as the task has them."""
    config, ids = make.config, batch.get("input_ids")
    if "start_positions" in accepts:
        return {"start_positions": torch.tensor([1] * BATCH), "end_positions": torch.tensor([3] * BATCH)}
    if "mask_labels" in accepts:
        masks = torch.zeros(BOXES, make.height, make.width)
        masks[:, : make.height // 2] = 1
        return {
            "mask_labels": [masks.clone() for _ in range(BATCH)],
            "class_labels": [torch.arange(BOXES) % CLASSES for _ in range(BATCH)],
        }
    if "return_loss" in accepts:
        return {"return_loss": True}
    if "next_sentence_label" in accepts and "labels" in accepts and ids is not None:
        return {"labels": ids.clone(), "next_sentence_label": torch.zeros(BATCH, dtype=torch.long)}
    if "future_values" in accepts:
        length, channels = (
            int(_field(config, "prediction_length") or 16),
            int(_field(config, "num_input_channels") or 1),
        )
        return {"future_values": torch.randn(BATCH, length, channels)}
    if "labels" not in accepts:
        return {}
    boxes = torch.tensor([0.3, 0.4, 0.2, 0.2]) + torch.arange(BOXES).unsqueeze(1) * torch.tensor([0.1, 0.1, 0.0, 0.0])
    target = {"class_labels": torch.arange(BOXES) % CLASSES, "boxes": boxes}
    if task in ("IMAGE_SEGMENTATION", "OBJECT_DETECTION", "INSTANCE_SEGMENTATION"):
        if task != "OBJECT_DETECTION":
            target["masks"] = torch.zeros(BOXES, make.height, make.width)
        return {"labels": [{name: value.clone() for name, value in target.items()} for _ in range(BATCH)]}
    if task.endswith("SEMANTIC_SEGMENTATION"):
        return {"labels": torch.randint(0, CLASSES, (BATCH, make.height, make.width))}
    if task in ("TOKEN_CLASSIFICATION", "AUDIO_FRAME_CLASSIFICATION"):
        return {"labels": torch.randint(0, CLASSES, (BATCH, LENGTH))}
    if task.endswith("CLASSIFICATION") or task in ("MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION", "AUDIO_XVECTOR"):
        return {"labels": torch.randint(0, CLASSES, (BATCH,))}
    decodes = getattr(config, "is_encoder_decoder", False)
    shared = ids is not None and not decodes
    return {"labels": ids.clone() if shared else make.ids(BATCH, LENGTH // 2)}
