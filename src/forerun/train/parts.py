"""A checkpoint in parts: every rank writes what it holds, and any number of ranks reads what it needs.

A part says for each tensor where it begins in the whole one. Of packed weights whose matrices are split each, a rank
has a piece of every matrix, under a key of its own. Reading copies the overlap of every part with what a rank holds, so
that nothing is ever whole on one machine. Parts lie on one file system that all ranks see.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from forerun.train.ranks import rank

Places = dict[str, list[int]]
"""Tensor → where its part begins in the whole tensor."""
PIECE = "|piece"
"""Before the number of a further piece of a tensor, in the key of a part."""


def is_sharded(tensor: Any) -> bool:
    """Whether ranks hold parts of it."""
    return hasattr(tensor, "full_tensor")


def is_first_copy(tensor: Any, stage_ranks: int) -> bool:
    """Whether this rank is the first of those that hold the same values of `tensor`; a stage has so many ranks."""
    if not is_sharded(tensor):
        return rank() % stage_ranks == 0
    place = tensor.device_mesh.get_coordinate()
    return not any(where and layout.is_replicate() for where, layout in zip(place, tensor.placements, strict=True))


def parts_of(name: str, tensor: Tensor) -> dict[str, tuple[Tensor, list[int]]]:
    """Key → a part of the tensor `name` that this rank holds without gaps, and where it begins in the whole one."""
    if not is_sharded(tensor):
        return {name: (tensor, [0] * tensor.ndim)}
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    _, offset = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    local, begin = sharded.to_local(), list(offset)
    dim, matrices = _packing(sharded)
    if matrices == 1:
        return {name: (local, begin)}
    parts = {}
    for number, piece in enumerate(local.chunk(matrices, dim)):
        place = [*begin]
        place[dim] += number * sharded.shape[dim] // matrices
        parts[f"{name}{PIECE}{number}" if number else name] = (piece, place)
    return parts


def _packing(tensor: Any) -> tuple[int, int]:
    """Dimension along which each of several matrices is split, and how many; 0 and 1 where ranks have no gaps.

    Split twice along one dimension, the second time inside the first, is no gap: PyTorch's FSDP says so of weights
    that are split over ranks of layers already (`_StridedShard`).
    """
    for layout in tensor.placements:
        others = [other for other in tensor.placements if other is not layout and not other.is_replicate()]
        factor = getattr(layout, "split_factor", 1)
        if factor > 1 and all(getattr(other, "dim", None) != layout.dim for other in others):
            return layout.dim, factor
    return 0, 1


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
        return {key.partition(PIECE)[0] for places in self.files.values() for key in places}

    def _pieces(self, name: str) -> Iterator[tuple[Path, str, list[int]]]:
        """Every part of the tensor `name`: its file, its key there, and where it begins."""
        for file, places in self.files.items():
            for number in itertools.count():
                key = f"{name}{PIECE}{number}" if number else name
                if key not in places:
                    break
                yield file, key, places[key]

    def shape(self, name: str) -> list[int]:
        """Shape of the whole tensor `name`."""
        ends = []
        for file, key, first_of in self._pieces(name):
            with safe_open(file, "pt") as tensors:
                size = tensors.get_slice(key).get_shape()
            ends.append([first + length for first, length in zip(first_of, size, strict=True)])
        return [max(column) for column in zip(*ends, strict=True)]

    def read(self, name: str, shape: Sequence[int], begin: Sequence[int]) -> Tensor:
        """The block of `shape` that begins at `begin` in the whole tensor `name`."""
        result: Tensor | None = None
        for file, key, place in self._pieces(name):
            with safe_open(file, "pt") as tensors:
                part = tensors.get_slice(key)
                overlap = self._overlap(part.get_shape(), place, shape, begin)
                if overlap is None:
                    continue
                theirs, ours = overlap
                values = part[theirs] if theirs else tensors.get_tensor(key)
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

        pieces = list(parts_of(name, other).values())
        sharded: Any = other
        device = pieces[0][0].device
        # more ranks than rows: the last ranks hold nothing, and no part overlaps
        values = [
            self.read(name, list(piece.shape), begin) if piece.numel() else torch.empty_like(piece, device="cpu")
            for piece, begin in pieces
        ]
        own = torch.cat(values, _packing(sharded)[0]) if len(values) > 1 else values[0]
        return DTensor.from_local(
            own.to(device), sharded.device_mesh, sharded.placements, shape=sharded.shape,
            stride=sharded.stride(), run_check=False,
        )  # fmt: skip
