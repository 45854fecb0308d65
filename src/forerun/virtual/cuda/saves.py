"""What a program saves with `torch.save` and loads again, such as the best weights at its end.

The file holds a mark, so that it can be renamed, copied, or written from a buffer (as Lightning and ultralytics do).
What was saved is kept as structure: tensors take no memory until they are loaded, on the device they are loaded to.

Not covered: tensors inside objects that are no containers, such as whole modules; these come back as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from forerun.virtual.cuda.cards import name_of
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.cuda.shadow import set_shadow, shadow_of

MARK = b"saved while nothing is saved "
WIDTH = len(MARK) + 8


@dataclass(frozen=True)
class SavedTensor:
    """A tensor without its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    is_parameter: bool
    requires_grad: bool
    values: torch.Tensor | None
    """On the host, where they are known."""
    is_assumed: bool = False


class SavedObjects:
    """Everything that was saved, by the mark in its file."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def put(self, value: Any) -> bytes:
        """Keep `value`; returns the content of its file."""
        self._values.append(tree_map_only(torch.Tensor, _without_memory, value))
        return MARK + b"%8d" % (len(self._values) - 1)

    def get(self, content: bytes, map_location: Any = None) -> Any:
        """What was saved under the mark that `content` begins with, its tensors made anew.

        `map_location` is as that of `torch.load`; a function is taken to keep tensors on the host.
        """
        value = self._values[int(content[len(MARK) : WIDTH])]
        return tree_map_only(SavedTensor, lambda each: _made_anew(each, map_location), value)


def is_mark(content: bytes) -> bool:
    """Whether a file that begins with `content` was saved here."""
    return content.startswith(MARK)


def _without_memory(tensor: torch.Tensor) -> SavedTensor:
    shadow = shadow_of(tensor)
    values = None if shadow is None else shadow.value.detach().clone()
    place = str(name_of(tensor.fake_device)) if is_virtual(tensor) else str(tensor.device)
    return SavedTensor(
        tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, place, isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad, values, shadow is not None and shadow.is_assumed,
    )  # fmt: skip


def _made_anew(saved: SavedTensor, map_location: Any) -> torch.Tensor:
    place = _place(saved.device, map_location)
    if place == "cpu" and saved.values is not None:
        tensor = saved.values.clone()
    else:
        tensor = torch.empty_strided(saved.shape, saved.stride, dtype=saved.dtype, device=place)
        if saved.values is not None and isinstance(tensor, FakeTensor):
            set_shadow(tensor, saved.values.clone(), is_assumed=saved.is_assumed)
    if saved.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=saved.requires_grad)
    return tensor.requires_grad_(saved.requires_grad)


def _place(device: str, map_location: Any) -> str:
    if map_location is None or device == "cpu":
        return device
    if isinstance(map_location, Mapping):
        return str(map_location.get(device, device))
    return "cpu" if callable(map_location) else str(torch.device(map_location))
