"""The card that a running program meets: its memory, which may run out, and its clock."""

import os
from collections.abc import Callable

import torch

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.hardware.catalogue import Device
from forerun.memory.alloc_conf import conf_of, options_on
from forerun.memory.allocator import CachingAllocator, SimulatedOutOfMemory
from forerun.memory.overhead import workspace_bytes
from forerun.memory.reductions import resident_threads, staging_bytes
from forerun.trace import PARTIAL_BYTES, Trace
from forerun.units import format_bytes
from forerun.virtual.backend import VirtualBackend

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
        self._threads = resident_threads(device)
        self._room_bytes = int(device.memory_bytes - device.context_bytes.expected)
        self._sizes: dict[int, int] = {}
        self.allocator_conf = ""
        """As the program's environment has it when its first tensor comes to the card."""
        self.largest_at_failure: list[int] = []
        """Keys of the largest storages that were alive when an allocation failed last."""
        self._limit_bytes, self.fraction = self._room_bytes if is_limited else None, 1.0
        self._is_touched = False
        self._allocator = self._new_allocator()

    def _new_allocator(self) -> CachingAllocator:
        """Nothing on it but the libraries' workspaces."""
        allocator = CachingAllocator(self._limit_bytes, options_on(self._device, self.allocator_conf))
        for number, size in enumerate(workspace_bytes(self._device)):
            allocator.allocate(-1 - number, size)
        return allocator

    def limit(self, share: float) -> None:
        """Let the process take a share of the card, as `torch.cuda.set_per_process_memory_fraction` does."""
        self.fraction = share
        if self._limit_bytes is not None:
            self._limit_bytes = min(self._room_bytes, int(share * self._device.memory_bytes))
            self._allocator.capacity_bytes = self._limit_bytes

    def configure(self, conf: str) -> None:
        """Set the allocator by words as `PYTORCH_ALLOC_CONF` has them, for what comes from now on."""
        self.allocator_conf = conf
        if self._is_touched:
            self._allocator.options = options_on(self._device, conf)
        else:
            self._is_touched, self._allocator = True, self._new_allocator()

    def at(self, number: int) -> "CardMemory":
        """Itself: there is one card."""
        return self

    def allocate(self, key: int, size: int, stream: int = 0, card: int = 0, reduces: int = 0) -> None:
        """Give `size` bytes to the storage `key`, from the pool of `stream`; more where it `reduces` (`Storage`).

        Raises:
            torch.OutOfMemoryError: the card is full, even with cached memory given back.
        """
        if not self._is_touched:
            self.configure(conf_of(os.environ))
        if reduces:
            size = staging_bytes(size // PARTIAL_BYTES, reduces, self._threads)
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


def memory_of(device: Device, cards: int = 1, *, is_limited: bool = True) -> "CardMemory | SeveralCards":
    """The memory that a program meets whose process drives so many cards."""
    if cards == 1:
        return CardMemory(device, is_limited=is_limited)
    return SeveralCards(device, cards, is_limited=is_limited)


class SeveralCards:
    """The cards that one process drives; what is asked without a card is of the present one."""

    def __init__(self, device: Device, count: int, *, is_limited: bool = True):
        self._cards = [CardMemory(device, is_limited=is_limited) for _ in range(count)]
        self._card_of: dict[int, CardMemory] = {}
        self.largest_at_failure: list[int] = []
        """Keys of the largest storages that were alive on the card whose allocation failed last."""

    def at(self, number: int) -> CardMemory:
        """The card of that number."""
        return self._cards[number]

    def allocate(self, key: int, size: int, stream: int = 0, card: int = 0, reduces: int = 0) -> None:
        """Give `size` bytes of a card to the storage `key`, from the pool of `stream`.

        Raises:
            torch.OutOfMemoryError: that card is full, even with cached memory given back.
        """
        one = self._cards[card]
        try:
            one.allocate(key, size, stream, reduces=reduces)
        except torch.OutOfMemoryError:
            self.largest_at_failure = one.largest_at_failure
            raise
        self._card_of[key] = one

    def free(self, key: int) -> None:
        """Take them back."""
        one = self._card_of.pop(key, None)
        if one is not None:
            one.free(key)

    @property
    def allocator_conf(self) -> str:
        """How the allocators are set."""
        return self._cards[0].allocator_conf

    @property
    def fraction(self) -> float:
        """The least share that the process may take of one of the cards."""
        return min(one.fraction for one in self._cards)

    def limit(self, share: float) -> None:
        """Let the process take a share of each."""
        for one in self._cards:
            one.limit(share)

    def configure(self, conf: str) -> None:
        """Set the allocators of all cards."""
        for one in self._cards:
            one.configure(conf)

    @property
    def _present(self) -> CardMemory:
        return self._cards[VirtualBackend.present_card]

    @property
    def allocated_bytes(self) -> int:
        """Bytes in use on the present card."""
        return self._present.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the present card that its allocator has taken from the driver."""
        return self._present.reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that was in use on the present card since its peaks were reset."""
        return self._present.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was taken from the driver there."""
        return self._present.peak_reserved_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that the driver can still give of the present card."""
        return self._present.free_bytes

    def empty_cache(self) -> None:
        """Give unused segments of all cards back to the driver."""
        for one in self._cards:
            one.empty_cache()

    def reset_peaks(self) -> None:
        """Look for peaks of the present card from now on."""
        self._present.reset_peaks()
