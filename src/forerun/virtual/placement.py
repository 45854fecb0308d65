"""Give a model that was built on `meta` fake storage on a device, keeping tied weights tied."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def place(model: Module, device: torch.device) -> Module:
    """Replace every meta parameter and buffer of `model` by an empty one on `device`; call it under a fake mode."""
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if id(old) not in placed:
                    placed[id(old)] = _empty_twin(old, device)
                table[name] = placed[id(old)]  # type: ignore[assignment]
    return model


def _empty_twin(old: Tensor, device: torch.device) -> Tensor:
    new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
