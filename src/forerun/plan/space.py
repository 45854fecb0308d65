"""Which settings a plan may choose from, and how two settings differ.

Changed freely: what leaves the meaning of updates alone (micro-batch against accumulation, padding, recomputation,
kernels, mixed precision, compiling). Changed only where the user allows it: the method (weights stored in 16 bits,
8-bit optimizer, adapters, quantisation) and the global batch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from forerun.errors import InvalidSettings
from forerun.forecasting.request import BF16, FP16, require_precision
from forerun.hardware.catalogue import Device
from forerun.hardware.rates import is_float16_worth_it
from forerun.plan.outcome import SettingChange
from forerun.settings.load import settings_from
from forerun.settings.model import AUTOCASTS_OVER
from forerun.settings.schema import Settings

ALLOWABLE = ("method", "global-batch")
LANGUAGE_HEADS = ("causal-lm", "masked-lm", "seq2seq-lm")
"""Workloads whose loss can be computed in chunks of tokens."""
GLOBAL_FACTORS = (0.5, 2, 4)
"""Factors on the global batch that are tried where it may change."""
PADDINGS = ("fixed", "longest", "bucketed")


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """`settings` with values at dotted paths replaced.

    Raises:
        InvalidSettings: the result breaks a rule.
    """
    content = settings.model_dump()
    for path, value in changes.items():
        *sections, name = path.split(".")
        inner = content
        for section in sections:
            inner = inner[section]
        inner[name] = value
    if "precision" in changes and "model.dtype" not in changes:
        content["model"]["dtype"] = _dtype_beside(settings, content["precision"])
    return settings_from(content)


def _dtype_beside(settings: Settings, precision: str) -> str:
    """`model.dtype` where another precision takes the place of that of `settings`: 16 bits stay 16 bits where they can.

    Weights in float16 that are trained have gradients in float16, which a loss scale refuses.
    """
    narrow = AUTOCASTS_OVER.get(precision, "auto") if settings.model.dtype in AUTOCASTS_OVER.values() else "auto"
    trains_them = settings.adapter.kind != "lora" or bool(settings.adapter.modules_to_save)
    return "auto" if narrow == "float16" and trains_them else narrow


def differences(old: Settings, new: Settings) -> list[SettingChange]:
    """Settings that differ, by dotted path, in the order of the schema; the run's name is left out."""
    return [
        SettingChange(path=path, old=before, new=after)
        for (path, before), (_, after) in zip(_leaves(old.model_dump()), _leaves(new.model_dump()), strict=True)
        if before != after and path != "name"
    ]


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and prefix + name not in ("recipe", "model.config"):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def batch_sizes(settings: Settings, samples_per_device: int) -> list[int]:
    """Micro-batch sizes whose multiples make the batch of one device, ascending."""
    limit = settings.data.examples or samples_per_device
    return [n for n in range(1, samples_per_device + 1) if samples_per_device % n == 0 and n <= limit]


def with_batch(settings: Settings, size: int, accumulation: int) -> Settings:
    """`settings` with `accumulation` micro-batches of `size` samples in a step."""
    return changed(
        settings, {"batch.micro_batch_size": size, "batch.gradient_accumulation_steps": accumulation}
    )  # fmt: skip


def samples_per_device(settings: Settings) -> int:
    """Samples of one optimizer step on one device."""
    return settings.batch.micro_batch_size * settings.batch.gradient_accumulation_steps


def precisions(settings: Settings, device: Device) -> list[str]:
    """Number formats worth a look on `device`, the likeliest first.

    Of two that the hardware runs equally fast only one: bf16 before fp16, which needs loss scaling; tf32 before fp32.
    Weights stay in 32 bits unless the settings store them in 16 already.
    """
    own = settings.precision
    half = "bf16" if device.has_bf16 else "fp16"
    if device.kind == "cpu":
        full = ["fp32"]
        if not device.has_bf16:
            return full
    else:
        full = ["tf32"] if "tfloat32" in device.peak_flops_per_second else ["fp32"]
        if not is_float16_worth_it(device.peak_flops_per_second):
            return full
    if own.endswith("-true"):
        return [f"{half}-true"] if own.startswith(half) else [f"{half}-mixed"]
    if settings.has_narrow_weights:
        return [f"{half}-mixed"]
    if own in BF16 + FP16 and device.kind == "cuda" and not (own in BF16 and not device.has_bf16):
        half = own[:4]
    return [f"{half}-mixed", *full]


def strategies(settings: Settings) -> list[str]:
    """Ways to use the devices that the settings ask for."""
    parallel = settings.parallel
    if parallel.data_ranks == 1 or parallel.offload != "none":
        return [parallel.kind]
    is_plain = parallel.tensor == parallel.replicate == parallel.context == parallel.expert == parallel.pipeline == 1
    return ["ddp", "fsdp"] if is_plain else ["fsdp"]


def offloading(settings: Settings) -> dict[str, str]:
    """What could live in host memory instead, as the program that these settings are of has it; empty where nothing."""
    parallel, optimizer = settings.parallel, settings.optimizer
    if (
        parallel.engine == "megatron"
        or parallel.offload != "none"
        or optimizer.name != "adamw"
        or optimizer.in_backward
    ):
        return {}
    if parallel.kind == "fsdp" and parallel.pipeline == 1 and settings.precision != "fp16-mixed":
        return {"parallel.offload": "parameters"}
    has_state = settings.adapter.kind == "none" and (parallel.is_alone or parallel.deepspeed_stage)
    return {"parallel.offload": "optimizer"} if has_state else {}


def can_run(settings: Settings, device: Device) -> bool:
    """Whether the hardware has the precision of `settings`."""
    try:
        require_precision(settings, device)
    except InvalidSettings:
        return False
    has_16_bits = device.kind == "cpu" or "float16" in device.peak_flops_per_second
    return has_16_bits or settings.precision not in BF16 + FP16


def recomputations(settings: Settings) -> list[dict[str, str]]:
    """Ways to trade time for memory, the cheapest in time first; the first trades nothing."""
    losses = ["full"]
    if settings.workload in LANGUAGE_HEADS and settings.parallel.kind != "fsdp":
        losses.append("chunked")
    kinds = ["none", "selective", "blocks"] if settings.quantization != "int8" else ["none", "blocks"]
    return [{"activation_checkpointing": kind, "cross_entropy": loss} for kind in kinds for loss in losses]


def is_leaner(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether `one` does everything that `other` does to save memory, and more: then it cannot be faster."""
    order = {"none": 0, "full": 0, "selective": 1, "chunked": 1, "blocks": 2}
    pairs = [(order[one[name]], order[other[name]]) for name in other]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def method_ladder(settings: Settings, device: Device) -> list[tuple[str, dict[str, Any]]]:
    """Changes of method that save memory, the mildest first: what it is called, and the settings changed."""
    ladder: list[tuple[str, dict[str, Any]]] = []
    if settings.adapter.kind == "none":
        if settings.optimizer.name == "adamw" and settings.parallel.kind != "fsdp":
            ladder.append(("8-bit optimizer", {"optimizer.name": "adamw-8bit", "optimizer.implementation": "auto"}))
        ladder.append(("LoRA", {"adapter.kind": "lora"}))
    adapter: dict[str, Any] = {"adapter.kind": "lora"}
    if device.has_bf16 and not settings.has_narrow_weights:
        # adapters are fp32 beside them, and multiply in 16 bits under autocast, which DeepSpeed does without
        autocast = {"precision": "bf16-mixed", "model.dtype": "bfloat16"}
        adapter |= {"precision": "bf16-true"} if settings.parallel.deepspeed_stage else autocast
        ladder.append(("LoRA on weights in 16 bits", dict(adapter)))
    if settings.quantization == "none" and settings.parallel.kind != "fsdp":
        ladder.append(("QLoRA", {**adapter, "quantization": "nf4-double"}))
    return ladder
