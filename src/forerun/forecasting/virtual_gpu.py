"""A virtual GPU for any PyTorch program: run it on `.device`, then read `.memory` and `.clock`.

    with forerun.virtual_gpu("a100-40gb") as gpu:
        model = build().to(gpu.device)
        model(torch.zeros(8, 512, dtype=torch.long, device=gpu.device)).sum().backward()
    print(gpu.memory.peak_allocated_bytes, gpu.clock.seconds)

It is `forerun.virtual_cuda` under another name: `.device` is what the program calls `cuda`.
"""

import torch

from forerun.forecasting.virtual_card import VirtualCard
from forerun.hardware.catalogue import device as catalogue_device
from forerun.virtual.cuda.cards import this_card


class VirtualGPU(VirtualCard):
    """A virtual GPU in use, from `virtual_gpu`."""

    @property
    def device(self) -> torch.device:
        """The torch device to build on or move to."""
        return this_card()


def virtual_gpu(name: str, *, attention: str = "auto", limited: bool = True) -> VirtualGPU:
    """A virtual GPU of the catalogue; use it as a context manager. Unless it is `limited` it has memory without end.

    Raises:
        UnknownDevice: no such GPU.
    """
    return VirtualGPU(catalogue_device(name), attention, is_limited=limited)
