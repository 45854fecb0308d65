"""One model for a reader: sizes, sources, what it needs at least, and forecasts of three usual ways to train it.

The three ways are full fine-tuning, LoRA and QLoRA at one sample a step with blocks recomputed: the least that each can
do with. The coarse part needs no tracing; the forecasts are those of `forerun forecast`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device, devices
from forerun.hardware.rates import is_float16_worth_it
from forerun.models.build import build_model, maximum_length, workloads_of
from forerun.models.catalogue import model_config
from forerun.models.footprint import Footprint, LeastCard, ModelDescription, TrainingOption, footprint_of, shape_of
from forerun.models.published_files import published_bytes
from forerun.models.rows import Architecture, row_of
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings

LENGTH = 512
ADAPTER = {"kind": "lora", "rank": 16, "alpha": 32, "targets": "all-linear"}
WORKLOADS = {"encoder": "sequence-classification"}
"""What a model is trained for, where its count is that of a bare encoder."""
LEAST_CARDS = ("consumer", "workstation", "datacenter")


def described(
    name: str, gpus: Sequence[Device], overrides: Sequence[str], ask: Callable[[Settings, Device], Forecast]
) -> ModelDescription:
    """The description of a catalogue name, words, hub id or folder; `ask` makes a forecast.

    Raises:
        UnknownModel: none of these.
    """
    config = model_config(name, {}, "auto")
    listed = row_of(name)
    row = listed or _counted(name, config)
    shape = shape_of(config.to_dict())
    footprint = footprint_of(row, shape, bool(getattr(config, "tie_word_embeddings", False)))
    workload = WORKLOADS.get(row.parameters_of, row.parameters_of)
    length = min(LENGTH, maximum_length(config) or LENGTH)
    options = [
        _option(way, device, _settings(row.name, workload, length, changes, device), overrides, ask)
        for device in gpus
        for way, changes in WAYS.items()
    ]
    return ModelDescription(
        **row.model_dump(include={"name", "family", "parameters", "parameters_of", "source", "licence"}),
        hub_ids=row.hub_ids, published_bytes=None if listed else published_bytes(name), shape=shape,
        footprint=footprint, coarse=_least_cards(footprint), options=tuple(options),
    )  # fmt: skip


WAYS: dict[str, dict[str, Any]] = {
    "full, AdamW, mixed": {"precision": "mixed"},
    "LoRA on 16 bits": {"precision": "true", "adapter": ADAPTER},
    "QLoRA, nf4": {"precision": "true", "adapter": ADAPTER, "quantization": "nf4"},
}


def _counted(name: str, config: Any) -> Architecture:
    """A row for a model that has none: counted by building it without weights."""
    heads = workloads_of(config)
    head = next((each for each in ("causal-lm", "seq2seq-lm") if each in heads), "encoder")
    with torch.device("meta"):
        model = build_model(config, head)
    return Architecture(
        name=name, family=config.model_type, model_type=config.model_type, config={}, parameters_of=head,
        parameters=sum(p.numel() for p in model.parameters()), source="its config, built without weights",
    )  # fmt: skip


def _settings(name: str, workload: str, length: int, changes: Mapping[str, Any], device: Device) -> dict[str, Any]:
    kind = "bf16" if device.has_bf16 else "fp16"
    has_16_bits = device.has_bf16 or is_float16_worth_it(device.peak_flops_per_second)
    precision = f"{kind}-{changes['precision']}" if has_16_bits else "fp32"
    return {
        "name": "model", "workload": workload, "model": {"name": name}, "optimizer": {"name": "adamw"},
        "batch": {"micro_batch_size": 1, "sequence_length": length}, "data": {"examples": 1000},
        "activation_checkpointing": "blocks", **changes, "precision": precision,
    }  # fmt: skip


def _option(
    way: str, device: Device, settings: dict[str, Any], overrides: Sequence[str], ask: Callable[..., Forecast]
) -> TrainingOption:
    try:
        forecast = ask(settings_from(settings, overrides), device)
    except ForerunError as error:
        return TrainingOption(way=way, gpu=device.name, refusal=str(error))
    return TrainingOption(
        way=way, gpu=device.name, fits=forecast.fits, device_bytes=forecast.memory.device_bytes.conservative,
        capacity_bytes=forecast.memory.capacity_bytes, step_seconds=forecast.step.seconds.expected,
    )  # fmt: skip


def _least_cards(footprint: Footprint) -> tuple[LeastCard, ...]:
    needs = {
        "weights in bf16": footprint.weights_bf16_bytes,
        "weights in nf4": footprint.weights_nf4_bytes,
        "full training, mixed precision": footprint.full_training_bytes,
    }
    return tuple(LeastCard(what=what, needs_bytes=size, cards=_smallest(size)) for what, size in needs.items())


def _smallest(size: int) -> dict[str, str]:
    cards: dict[str, str] = {}
    for segment in LEAST_CARDS:
        large = [row for row in devices() if row.segment == segment and row.is_offered and row.memory_bytes > size]
        if large:
            cards[segment] = min(large, key=lambda row: row.memory_bytes).name
    return cards
