"""The card that a running program meets: its memory, which may run out, and its clock."""

from collections.abc import Callable

import torch

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.hardware.catalogue import Device
from forerun.memory.allocator import CachingAllocator, SimulatedOutOfMemory
from forerun.memory.overhead import workspace_bytes
from forerun.trace import Trace
from forerun.units import format_bytes

MOST_LISTED = 10
"""Storages that are listed when a card is full."""


def clock_of(device: Device) -> Callable[[Trace, int, int], float]:
    """Seconds on `device` from one event of a trace to another, for `torch.cuda.Event.elapsed_time`."""
    costs = PriorCosts(device)
    return lambda trace, begin, end: replay_clock(trace.part(begin, end), costs).seconds


class CardMemory:
    """The caching allocator of a card, failing as PyTorch's does; unless it is limited it never fails."""

    def __init__(self, device: Device, *, is_limited: bool = True):
        self._device = device
        self._room_bytes = int(device.memory_bytes - device.context_bytes.expected)
        self._sizes: dict[int, int] = {}
        self.largest_at_failure: list[int] = []
        """Keys of the largest storages that were alive when an allocation failed last."""
        self._allocator = CachingAllocator(self._room_bytes if is_limited else None)
        for number, size in enumerate(workspace_bytes(device)):
            self._allocator.allocate(-1 - number, size)

    def allocate(self, key: int, size: int, stream: int = 0) -> None:
        """Give `size` bytes to the storage `key`, from the pool of `stream`.

        Raises:
            torch.OutOfMemoryError: the card is full, even with cached memory given back.
        """
        try:
            self._allocator.allocate(key, size, stream)
            self._sizes[key] = size
        except SimulatedOutOfMemory:
            raise self._full(size) from None

    def _full(self, size: int) -> torch.OutOfMemoryError:
        self.largest_at_failure = sorted(self._sizes, key=lambda key: -self._sizes[key])[:MOST_LISTED]
        # made here: a name for it where it is raised would keep that frame, and all its tensors, alive in a cycle
        allocated, reserved = self._allocator.allocated_bytes, self._allocator.reserved_bytes
        error = torch.OutOfMemoryError(
            f"CUDA out of memory (virtual GPU). Tried to allocate {format_bytes(size)}. {self._device.name} has "
            f"{format_bytes(self._device.memory_bytes)} in total, of which {format_bytes(allocated)} is allocated by "
            f"PyTorch and {format_bytes(reserved - allocated)} is reserved but unallocated."
        )
        error.tried_bytes, error.allocated_bytes = size, allocated  # type: ignore[attr-defined]
        return error

    def free(self, key: int) -> None:
        """Take them back."""
        self._allocator.free(key)
        self._sizes.pop(key, None)

    @property
    def allocated_bytes(self) -> int:
        """Bytes in use, as `torch.cuda.memory_allocated` counts them."""
        return self._allocator.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the allocator has taken from the driver."""
        return self._allocator.reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that was in use since the peaks were reset."""
        return self._allocator.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was taken from the driver since the peaks were reset."""
        return self._allocator.peak_reserved_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that the driver can still give."""
        return max(0, self._room_bytes - self._allocator.reserved_bytes)

    def empty_cache(self) -> None:
        """Give unused segments back to the driver."""
        self._allocator.flush()

    def reset_peaks(self) -> None:
        """Look for peaks from now on."""
        self._allocator.reset_peaks()
