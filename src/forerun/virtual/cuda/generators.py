"""`torch.Generator(device="cuda")`: its numbers come from the host, where nobody looks at those of the device."""

from typing import Any

import torch

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.cards import this_card

HostGenerator = torch.Generator


class _AnyGenerator(type(HostGenerator)):
    """Generators that were made before count as well."""

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(HostGenerator, value)


class CudaGenerator(HostGenerator, metaclass=_AnyGenerator):
    """A generator that says which device it was made for."""

    _made_for: torch.device

    def __new__(cls, device: Any = "cpu") -> "CudaGenerator":
        """A generator of the host."""
        generator = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        where = torch.device(device)
        generator._made_for = this_card() if where.type in ("cuda", DEVICE) and where.index is None else where
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the program named."""
        return self._made_for
