"""A virtual GPU for code that says `cuda`: everything between entering and leaving runs on it.

with forerun.virtual_cuda("t4") as gpu:
    model = build().cuda()
    train_one_step(model)
print(gpu.memory.peak_allocated_bytes, gpu.clock.seconds)
"""

from forerun.errors import InvalidSettings
from forerun.forecasting.virtual_card import VirtualCard
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import device as catalogue_device


class VirtualCuda(VirtualCard):
    """CUDA as a program sees it, on the virtual twin of a card; from `virtual_cuda`."""

    @property
    def device(self) -> Device:
        """The card's row in the catalogue."""
        return self.row


def virtual_cuda(name: str, gpus: int = 1) -> VirtualCuda:
    """CUDA on a virtual GPU of the catalogue, as a context manager; out of memory is raised where the card would.

    With `gpus` more than one, the code within drives so many by itself: `cuda:0`, `cuda:1` and so on.

    Raises:
        UnknownDevice: no such GPU.
        InvalidSettings: less than one GPU.
    """
    if gpus < 1:
        raise InvalidSettings(f"virtual_cuda: gpus is a number from 1 on; found {gpus}. Leave it out for one GPU.")
    return VirtualCuda(catalogue_device(name), gpus=gpus)
