"""A checkpoint in parts: every rank writes what it holds, and any number of ranks reads what it needs.

A part says for each tensor where it begins in the whole one. Reading copies the overlap of every part with what a rank
holds, so that nothing is ever whole on one machine. Parts lie on one file system that all ranks see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from forerun.train.ranks import rank

Places = dict[str, list[int]]
"""Tensor → where its part begins in the whole tensor."""


def is_sharded(tensor: Any) -> bool:
    """Whether ranks hold parts of it."""
    return hasattr(tensor, "full_tensor")


def is_first_copy(tensor: Any, stage_ranks: int) -> bool:
    """Whether this rank is the first of those that hold the same values of `tensor`; a stage has so many ranks."""
    if not is_sharded(tensor):
        return rank() % stage_ranks == 0
    place = tensor.device_mesh.get_coordinate()
    return not any(where and layout.is_replicate() for where, layout in zip(place, tensor.placements, strict=True))


def part_of(tensor: Tensor) -> tuple[Tensor, list[int]]:
    """The part of `tensor` that this rank holds, and where it begins in the whole one."""
    if not is_sharded(tensor):
        return tensor, [0] * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    _, offset = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return sharded.to_local(), list(offset)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors, none in another's memory."""
    # safetensors/torch.py (0.8), save_file: refuses tensors that share memory. bitsandbytes' 8-bit optimizers do: their
    # states share code tables (bitsandbytes/optim/optimizer.py (0.50), name2qmap).
    separate, storages = {}, set[int]()
    for key, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        separate[key] = value.clone().contiguous() if place in storages else value.contiguous()
        storages.add(place)
    return separate


@dataclass(frozen=True)
class Parts:
    """The files of one kind (model, optimizer) of a checkpoint, with the places of their tensors."""

    files: Mapping[Path, Places]

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return {name for places in self.files.values() for name in places}

    def shape(self, name: str) -> list[int]:
        """Shape of the whole tensor `name`."""
        ends = []
        for file, places in self.files.items():
            if name in places:
                with safe_open(file, "pt") as tensors:
                    size = tensors.get_slice(name).get_shape()
                ends.append([first + length for first, length in zip(places[name], size, strict=True)])
        return [max(column) for column in zip(*ends, strict=True)]

    def read(self, name: str, shape: Sequence[int], begin: Sequence[int]) -> Tensor:
        """The block of `shape` that begins at `begin` in the whole tensor `name`."""
        result: Tensor | None = None
        for file, places in self.files.items():
            if name not in places:
                continue
            with safe_open(file, "pt") as tensors:
                part = tensors.get_slice(name)
                overlap = self._overlap(part.get_shape(), places[name], shape, begin)
                if overlap is None:
                    continue
                theirs, ours = overlap
                values = part[theirs] if theirs else tensors.get_tensor(name)
                if result is None:
                    result = torch.empty(tuple(shape), dtype=values.dtype)
                result[ours] = values
        if result is None:
            raise KeyError(name)
        return result

    @staticmethod
    def _overlap(
        part_shape: Sequence[int], part_begin: Sequence[int], shape: Sequence[int], begin: Sequence[int]
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """Slices of the part and of the block that hold the same values; None when they do not overlap."""
        theirs, ours = [], []
        for size, first, extent, start in zip(part_shape, part_begin, shape, begin, strict=True):
            low, high = max(first, start), min(first + size, start + extent)
            if low >= high:
                return None
            theirs.append(slice(low - first, high - first))
            ours.append(slice(low - start, high - start))
        return tuple(theirs), tuple(ours)

    def read_like(self, name: str, other: Tensor) -> Tensor:
        """The tensor `name`, sharded like `other`: whole, or this rank's part of it."""
        if not is_sharded(other):
            return self.read(name, list(other.shape), [0] * other.ndim)
        from torch.distributed.tensor import DTensor

        local, begin = part_of(other)
        empty = local.numel() == 0  # more ranks than rows: the last ranks hold nothing, and no part overlaps
        values = torch.empty_like(local, device="cpu") if empty else self.read(name, list(local.shape), begin)
        sharded: Any = other
        return DTensor.from_local(
            values.to(local.device), sharded.device_mesh, sharded.placements, shape=sharded.shape,
            stride=sharded.stride(), run_check=False,
        )  # fmt: skip
