"""The host's allocator: glibc's malloc while training keeps what it frees (`hardware/host_memory.py`).

Nothing is given back, so what stays resident is the highest address that was ever used. Rules, from malloc/malloc.c
(glibc 2.36): free neighbours merge; the smallest free chunk that fits is taken and split; else the heap grows.

Not covered: small allocations of Python between tensors, temporaries inside libraries.
"""

from bisect import bisect_left, insort

ALIGNMENT = 64  # c10/core/alignment.h:16 (2.13), gAlignment
HEADER, GRAIN = 16, 16  # malloc/malloc.c, CHUNK_HDR_SZ and MALLOC_ALIGNMENT of a 64-bit host


class Heap:
    """Chunks by key, as bytes from the heap's beginning."""

    def __init__(self) -> None:
        self.peak_reserved_bytes = 0
        """Resident: the highest address used so far."""
        self._top = 0
        """End of the highest chunk in use; everything above is free."""
        self._chunks: dict[int, tuple[int, int]] = {}
        """Key → address and size."""
        self._requested: dict[int, int] = {}
        self._free_sizes: list[tuple[int, int]] = []
        """Sorted (size, address)."""
        self._free_from: dict[int, int] = {}
        """Address → size."""
        self._free_to: dict[int, int] = {}
        """End address → address."""

    def allocate(self, key: int, size: int, stream: int = 0) -> None:
        """Give `size` bytes to the storage `key`."""
        self._requested[key] = -(-size // ALIGNMENT) * ALIGNMENT
        chunk_size = max(2 * GRAIN, -(-(size + HEADER) // GRAIN) * GRAIN)
        # malloc/malloc.c, _int_memalign: an aligned request asks for more and returns the rest
        address = self._from_free(chunk_size + ALIGNMENT, chunk_size)
        if address is None:
            address = self._top
            self._top += chunk_size
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._top)
        self._chunks[key] = address, chunk_size

    def free(self, key: int) -> None:
        """Take back what the storage `key` has."""
        self._requested.pop(key, None)
        if key not in self._chunks:
            return
        address, size = self._chunks.pop(key)
        before = self._free_to.get(address)
        if before is not None:
            size += self._unlist(before)
            address = before
        if address + size in self._free_from:
            size += self._unlist(address + size)
        # malloc/malloc.c, _int_free: a chunk that borders the top becomes part of it
        if address + size == self._top:
            self._top = address
        else:
            self._list(address, size)

    def block_bytes(self, key: int) -> int:
        """Bytes of the storage `key`, as PyTorch aligns them; 0 for an unknown key."""
        return self._requested.get(key, 0)

    def rename(self, old: int, new: int) -> None:
        """The bytes of storage `old` belong to `new` from now on."""
        if old in self._chunks:
            self._chunks[new] = self._chunks.pop(old)
            self._requested[new] = self._requested.pop(old)

    def _from_free(self, search: int, chunk_size: int) -> int | None:
        position = bisect_left(self._free_sizes, (search, 0))
        if position == len(self._free_sizes):
            return None
        size, address = self._free_sizes[position]
        self._unlist(address)
        self._list(address + chunk_size, size - chunk_size)
        return address

    def _list(self, address: int, size: int) -> None:
        insort(self._free_sizes, (size, address))
        self._free_from[address] = size
        self._free_to[address + size] = address

    def _unlist(self, address: int) -> int:
        size = self._free_from.pop(address)
        del self._free_to[address + size]
        del self._free_sizes[bisect_left(self._free_sizes, (size, address))]
        return size
