"""`nn.DataParallel` over several cards: the first card's share, which holds the outputs of all.

PyTorch copies the model to each card in every forward pass, gives each a part of the batch, and gathers outputs on
the first card (torch/nn/parallel/data_parallel.py, 2.13). The others' work is alike, so the first is run and its
outputs stand for all. Copies between cards are noted with their bytes and take no time.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import scatter_gather

from forerun.units import format_bytes
from forerun.virtual.put_back import replaced


@contextlib.contextmanager
def playing_data_parallel(note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, `nn.DataParallel` over several cards is its first card's share; `note` is told of copies."""

    def forward(model: nn.DataParallel, *inputs: Any, **kwargs: Any) -> Any:
        cards = len(getattr(model, "device_ids", ()))
        if cards < 2:
            return original(model, *inputs, **kwargs)
        parts = _parts((inputs, kwargs), cards, model.dim)
        copied = (parts - 1) * sum(each.numel() * each.element_size() for each in model.module.parameters())
        note(
            f"nn.DataParallel over {cards} cards",
            f"the first card's share; {format_bytes(copied)} of weights and their gradients are copied in no time",
        )
        own_inputs, own_kwargs = _first((inputs, kwargs), parts, model.dim)
        return _gathered([model.module(*own_inputs, **own_kwargs)] * parts, model.dim)

    original = nn.DataParallel.forward
    with replaced(nn.DataParallel, "forward", forward):
        yield


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that are split: those with a dimension in containers of inputs."""
    if isinstance(value, torch.Tensor):
        if value.dim():
            yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _parts(value: Any, cards: int, dim: int) -> int:
    """Cards that are given rows: as many as `torch.chunk` makes parts, or one."""
    return max((len(tensor.chunk(cards, dim)) for tensor in _tensors(value)), default=1)


def _first(value: Any, parts: int, dim: int) -> Any:
    """The first card's inputs, on the card."""
    if isinstance(value, torch.Tensor):
        part = value.chunk(parts, dim)[0] if value.dim() else value
        return part.cuda(non_blocking=True)
    if isinstance(value, dict):
        return type(value)((name, _first(each, parts, dim)) for name, each in value.items())
    if isinstance(value, list | tuple):
        each = [_first(each, parts, dim) for each in value]
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    return value


def _gathered(outputs: list[Any], dim: int) -> Any:
    """All cards' outputs as one, by PyTorch's own rules for containers; single numbers become one for each card."""

    class Gather:
        @staticmethod
        def apply(_: Any, dimension: int, *tensors: torch.Tensor) -> torch.Tensor:
            if all(tensor.dim() == 0 for tensor in tensors):
                return torch.stack(tensors)
            return torch.cat(tensors, dimension)

    with replaced(scatter_gather, "Gather", Gather):
        return scatter_gather.gather(outputs, 0, dim)
