"""What `PYTORCH_ALLOC_CONF` asks of the caching allocator: the words that move memory, and those that are not modelled.

PyTorch 2.13 reads the first of `NAMES` that is set, when the first tensor comes to the card; the later ones are its
names of before (c10/core/AllocatorConfig.h). On ROCm it has no expandable segments, and says so.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from forerun.hardware.catalogue import Device
from forerun.memory.allocator import AllocatorOptions
from forerun.units import MIB

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
WITHOUT_EFFECT = frozenset({
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom",
})  # fmt: skip
"""Words that leave the bytes on the card as they are."""
NATIVE = "native"
_WORD = re.compile(r"([a-z0-9_]+):(\[[^\]]*\]|[^,\[\]]+)")


def conf_of(environment: Mapping[str, str]) -> str:
    """The words that are in force with these environment variables; empty where there are none."""
    return next((environment[name].strip() for name in NAMES if environment.get(name, "").strip()), "")


def words_of(text: str) -> dict[str, str]:
    """Its words and their values, as they are written; what is no word is under its own text, without a value."""
    words = {name: value.strip() for name, value in _WORD.findall(text.replace(" ", ""))}
    rest = _WORD.sub("", text.replace(" ", "")).replace(",", "")
    return words | ({rest: ""} if rest else {})


def options_of(text: str) -> AllocatorOptions:
    """What the allocator does otherwise; words that cannot be read, or that are not modelled, change nothing."""
    words = words_of(text)
    largest, threshold = _number(words.get("max_split_size_mb")), _number(words.get("garbage_collection_threshold"))
    return AllocatorOptions(
        expandable_segments=words.get("expandable_segments", "").lower() == "true",
        max_split_bytes=None if largest is None else int(largest * MIB),
        garbage_collection_threshold=threshold or 0.0,
        roundup_divisions=int(_number(words.get("roundup_power2_divisions")) or 0),
    )


def options_on(device: Device, text: str) -> AllocatorOptions:
    """The same on a card: ROCm has no expandable segments."""
    options = options_of(text)
    return replace(options, expandable_segments=False) if device.is_amd else options


def not_modelled(text: str) -> list[str]:
    """Words of it that are set and that the virtual GPU does not follow, as they are written."""
    words, options = words_of(text), options_of(text)
    follows = {
        "expandable_segments": words.get("expandable_segments", "").lower() in ("true", "false"),
        "max_split_size_mb": options.max_split_bytes is not None,
        "garbage_collection_threshold": _number(words.get("garbage_collection_threshold")) is not None,
        "roundup_power2_divisions": _number(words.get("roundup_power2_divisions")) is not None,
        "backend": words.get("backend") == NATIVE,
    }
    return [
        f"{name}:{value}" if value else name
        for name, value in words.items()
        if name not in WITHOUT_EFFECT and not follows.get(name, False)
    ]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
