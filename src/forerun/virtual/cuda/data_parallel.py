"""`nn.DataParallel` over several cards.

PyTorch copies the model to each card in every forward pass, gives each a part of the batch, and gathers outputs on
the first card (torch/nn/parallel/data_parallel.py, 2.13). Where the process drives all cards it is PyTorch's own code,
with the copies between cards that are C++ of CUDA there, and one card after the other instead of a thread for each.

Of a rank, which has one card, the first card's share is run and its outputs stand for all: the others' work is alike.
Copies between cards are then noted with their bytes and take no time.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _reorder_tensors_as, _take_tensors, _unflatten_dense_tensors
from torch.cuda import nccl
from torch.nn.parallel import _functions, scatter_gather

from forerun.units import format_bytes
from forerun.virtual.cuda.cards import in_use
from forerun.virtual.put_back import replaced


@contextlib.contextmanager
def playing_data_parallel(note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, `nn.DataParallel` runs over cards that are not there; `note` is told of a share's copies."""

    def forward(model: nn.DataParallel, *inputs: Any, **kwargs: Any) -> Any:
        cards = len(getattr(model, "device_ids", ()))
        if cards < 2 or in_use().are_driven:
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
    with (
        replaced(nn.DataParallel, "forward", forward),
        replaced(nn.DataParallel, "parallel_apply", _one_after_the_other),
        replaced(nccl, "is_available", lambda tensors: False),  # else a sum on one card is a call of NCCL's
        replaced(_functions, "_streams", None),  # one of each card that there was when it was first asked for
        replaced(torch._C, "_broadcast_coalesced", _copied_to_all),
        replaced(torch._C, "_scatter", _dealt),
        replaced(torch._C, "_gather", _brought_together),
    ):
        yield


def _one_after_the_other(model: nn.DataParallel, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
    """Outputs of the copies of a module, each on its card."""
    outputs = []
    for replica, own, options, number in zip(replicas, inputs, kwargs, model.device_ids, strict=False):
        with torch.cuda.device(number):
            outputs.append(replica(*own, **options))
    return outputs


def _card(number: int) -> str:
    return "cpu" if number < 0 else f"cuda:{number}"


def _copied_to_all(tensors: Sequence[torch.Tensor], devices: Sequence[int], size: int) -> list[list[torch.Tensor]]:
    """Copies of `tensors` on each of `devices`, in buffers of `size` bytes; on their own card they are themselves."""
    copies = []
    for number in devices:
        here: list[torch.Tensor] = []
        if tensors[0].get_device() != number:
            for chunk in _take_tensors(tensors, size):
                here += _unflatten_dense_tensors(_flatten_dense_tensors(chunk).to(_card(number)), chunk)
        copies.append(list(_reorder_tensors_as(here, tensors)) if here else list(tensors))
    return copies


def _dealt(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, _: object
) -> list[torch.Tensor]:
    """Parts of `tensor`, each on its card."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    if not in_use().are_driven:
        return [tensor.to("cuda")]
    return [part.to(_card(number)) for part, number in zip(parts, devices, strict=False)]


def _brought_together(tensors: Sequence[torch.Tensor], dim: int, number: int) -> torch.Tensor:
    """Tensors of several cards as one."""
    return torch.cat([tensor.to(_card(number)) for tensor in tensors], dim)


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
