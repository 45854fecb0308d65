"""Tokenised samples on disk: written one after the other, read one by one, with their lengths in memory.

    ids.npy  int32, all samples one after the other       ends.npy  where each sample ends
    targets.npy  int32 labels or ids, or float64 numbers  target_ends.npy  where those of each sample end
    types.npy  uint8, where samples have two texts        counts.npy  how often each label or id counts in the loss

Flat arrays in NumPy's format rather than Arrow: a sample is two offsets and a slice, and nothing has to be installed.
In memory are 8 bytes a sample, 16 with targets.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from forerun.data.flat_file import FlatFile, FlatWriter
from forerun.data.token_data import IGNORED, TokenSample

Kind = Literal["none", "tokens", "class", "number", "several"]
"""What the targets are: nothing, labels or ids of tokens, one class, one number, or a number for each label."""
DTYPES = {"tokens": np.int32, "class": np.int64, "number": np.float64, "several": np.float64}
COUNTED = 2**16
"""Labels that are counted at once."""


def write_samples(folder: Path, samples: Iterable[TokenSample]) -> int:
    """Write samples, all of one kind, into `folder`; their number."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = iter(samples)
    first = next(rows, None)
    kind = "none" if first is None else _kind_of(first)
    has_types, number = first is not None and first.types is not None, 0
    counts, rest = np.zeros(0, dtype=np.int64), list[NDArray[np.int32]]()
    waiting = 0
    with ExitStack() as stack:

        def writer(name: str, dtype: type) -> FlatWriter:
            return stack.enter_context(FlatWriter(folder / f"{name}.npy", dtype))

        ids, ends = writer("ids", np.int32), writer("ends", np.int64)
        targets = None if kind == "none" else writer("targets", DTYPES[kind])
        target_ends, types = writer("target_ends", np.int64), writer("types", np.uint8)
        for sample in chain([first] if first is not None else [], rows):
            number += 1
            own = np.asarray(sample.ids, dtype=np.int32)
            ids.add(own)
            ends.add(ids.length)
            if has_types:
                types.add(sample.types)
            if targets is not None:
                targets.add(sample.target)
                target_ends.add(targets.length)
            if kind in ("none", "tokens"):
                rest.append(own if sample.target is None else np.asarray(sample.target, dtype=np.int32))
                waiting += len(rest[-1])
                if waiting > COUNTED:
                    counts, rest, waiting = _counted(counts, rest), [], 0
    np.save(folder / "counts.npy", _counted(counts, rest))
    (folder / "kind").write_text(kind, encoding="utf-8")
    return number


class StoredSamples(Sequence[TokenSample]):
    """Samples of a folder that `write_samples` filled, or some of them."""

    def __init__(self, folder: Path, owner: object = None, places: range | None = None) -> None:
        self._folder, self._owner = folder, owner  # the owner keeps the folder from being removed
        self._kind: Kind = (folder / "kind").read_text(encoding="utf-8")  # type: ignore[assignment]
        self._ends = np.load(folder / "ends.npy")
        self._ids = FlatFile(folder / "ids.npy")
        self._types = FlatFile(folder / "types.npy")
        if self._kind != "none":
            self._targets = FlatFile(folder / "targets.npy")
            self._target_ends = np.load(folder / "target_ends.npy")
        self._places = range(len(self._ends)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> TokenSample: ...
    @overload
    def __getitem__(self, index: slice) -> "StoredSamples": ...
    def __getitem__(self, index: int | slice) -> "TokenSample | StoredSamples":
        if isinstance(index, slice):
            return StoredSamples(self._folder, self._owner, self._places[index])
        place = self._places[index]
        first, end = _edges(self._ends, place)
        types = self._types.piece(first, end) if len(self._types) else None
        return TokenSample(self._ids.piece(first, end), self._target(place), types)  # type: ignore[arg-type]

    @property
    def id_lengths(self) -> NDArray[np.int64]:
        """Ids of each sample."""
        return np.diff(self._ends, prepend=0)[self._places.start : self._places.stop : self._places.step]

    @property
    def target_lengths(self) -> NDArray[np.int64] | None:
        """Target ids or labels of each sample; None where targets are of the whole sample, or there are none."""
        if self._kind != "tokens":
            return None
        return np.diff(self._target_ends, prepend=0)[self._places.start : self._places.stop : self._places.step]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each label or id counts in the loss, over all samples of the folder; by id."""
        return np.load(self._folder / "counts.npy")

    def _target(self, place: int) -> Sequence[int] | Sequence[float] | float | None:
        if self._kind == "none":
            return None
        piece = self._targets.piece(*_edges(self._target_ends, place))
        if self._kind == "tokens":
            return piece  # type: ignore[return-value]
        return piece.tolist() if self._kind == "several" else piece.tolist()[0]


def _edges(ends: NDArray[np.int64], place: int) -> tuple[int, int]:
    return (int(ends[place - 1]) if place else 0), int(ends[place])


def _kind_of(sample: TokenSample) -> Kind:
    target = sample.target
    if target is None or isinstance(target, int | float):
        return "none" if target is None else "class" if isinstance(target, int) else "number"
    is_number = isinstance(target, list) and len(target) > 0 and isinstance(target[0], float)
    return "several" if is_number else "tokens"


def _counted(counts: NDArray[np.int64], rest: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    labels = np.concatenate([np.zeros(0, np.int32), *rest])
    more = np.bincount(labels[labels != IGNORED])
    size = max(len(counts), len(more))
    return np.pad(counts, (0, size - len(counts))) + np.pad(more, (0, size - len(more)))
