"""What of PyTorch's allocator settings is not in the forecast, and what they would help."""

from forerun.hardware.catalogue import Device
from forerun.memory.alloc_conf import not_modelled, options_of, options_on
from forerun.units import GIB

NOT_MODELLED = (
    "PYTORCH_ALLOC_CONF: the virtual GPU does not follow {words}, so reserved and device memory may be others. "
    "Allocated memory is the same."
)
NOT_ON_ROCM = (
    "PyTorch has no expandable segments on ROCm: the allocator of {name} is taken as without, as PyTorch warns there."
)
UNUSED_SHARE, LEAST_UNUSED_BYTES = 0.15, GIB
"""Of what is reserved at its peak, and in bytes: less than either is usual, and not worth a change."""
UNUSED = (
    "{unused} of the {reserved} that the allocator reserves are used by no tensor at the peak; "
    "allocator.expandable_segments: true (PYTORCH_ALLOC_CONF=expandable_segments:True) reserves less."
)


def allocator_warnings(conf: str, device: Device) -> list[str]:
    """Sentences for the reader of a forecast; `conf` is as `PYTORCH_ALLOC_CONF` has it."""
    ignored = not_modelled(conf)
    sentences = [NOT_MODELLED.format(words=", ".join(ignored))] if ignored else []
    if device.is_amd and options_of(conf).expandable_segments:
        sentences.append(NOT_ON_ROCM.format(name=device.name))
    return sentences


def unused_bytes(allocated_bytes: int, reserved_bytes: int, device: Device, conf: str) -> int:
    """What no tensor uses where expandable segments would help; 0 where they are on, missing, or it is little."""
    unused = reserved_bytes - allocated_bytes
    if device.kind != "cuda" or device.is_amd or options_on(device, conf).expandable_segments:
        return 0
    return unused if unused > max(LEAST_UNUSED_BYTES, UNUSED_SHARE * reserved_bytes) else 0
