"""What of PyTorch's allocator settings is not in the forecast."""

from forerun.hardware.catalogue import Device
from forerun.memory.alloc_conf import not_modelled, options_of

NOT_MODELLED = (
    "PYTORCH_ALLOC_CONF: the virtual GPU does not follow {words}, so reserved and device memory may be others. "
    "Allocated memory is the same."
)
NOT_ON_ROCM = (
    "PyTorch has no expandable segments on ROCm: the allocator of {name} is taken as without, as PyTorch warns there."
)


def allocator_warnings(conf: str, device: Device) -> list[str]:
    """Sentences for the reader of a forecast; `conf` is as `PYTORCH_ALLOC_CONF` has it."""
    ignored = not_modelled(conf)
    sentences = [NOT_MODELLED.format(words=", ".join(ignored))] if ignored else []
    if device.is_amd and options_of(conf).expandable_segments:
        sentences.append(NOT_ON_ROCM.format(name=device.name))
    return sentences
