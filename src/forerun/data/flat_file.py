"""Numbers in a `.npy` file that grows while it is written, and is read piece by piece by place.

NumPy's own format, so that `numpy.load` opens it, whole or mapped (`mmap_mode="r"`). Pieces are read with `preadv`, not
through a map: pages of a map count as resident memory of the process, up to the size of the file after one epoch.
"""

import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from forerun.units import MIB

BUFFER = MIB
"""Bytes that a writer gathers."""


class FlatWriter:
    """Writes a one-dimensional array, piece after piece."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file = path.open("wb", buffering=BUFFER)
        self._header()

    def add(self, values: Any) -> None:
        """Append values."""
        piece = np.ascontiguousarray(values, dtype=self.dtype)
        self._file.write(piece.data)
        self.length += piece.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._file.tell()
        self._header()
        assert kind is not None or end == self._start + self.length * self.dtype.itemsize
        self._file.close()

    def _header(self) -> None:
        # numpy/lib/_format_impl.py (2.4), GROWTH_AXIS_MAX_DIGITS: room for any length, so the header keeps its size
        self._file.seek(0)
        description = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, description)
        self._start = self._file.tell()


class FlatFile:
    """Reads pieces of a one-dimensional array; any number of threads and forked processes may."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def __len__(self) -> int:
        return self._length

    def piece(self, first: int, end: int) -> NDArray[Any]:
        """Values `first` to `end`, in memory of their own."""
        values = np.empty(end - first, dtype=self.dtype)
        view, place = memoryview(values.view(np.uint8)), 0  # type: ignore[arg-type]
        offset = self._start + first * self.dtype.itemsize
        while place < len(view):
            count = os.preadv(self._file, [view[place:]], offset + place)
            if not count:
                raise EOFError(f"{self._path} ends before value {end} of {self._length}")
            place += count
        return values

    def _open(self) -> None:
        with self._path.open("rb") as file:
            assert np.lib.format.read_magic(file) == (1, 0)
            shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
            self._length, self._start = int(shape[0]), file.tell()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def __getstate__(self) -> Path:
        return self._path

    def __setstate__(self, path: Path) -> None:
        self._path = path
        self._open()
