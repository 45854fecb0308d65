"""A virtual GPU for any PyTorch program: run it on `.device`, then read `.memory` and `.clock`.

    with forerun.virtual_gpu("a100-40gb") as gpu:
        model = build().to(gpu.device)
        model(torch.zeros(8, 512, dtype=torch.long, device=gpu.device)).sum().backward()
    print(gpu.memory.peak_allocated_bytes, gpu.clock.seconds)

Everything between entering and leaving counts as one step. Backward passes and optimizer updates are recognised by
themselves. A program that needs more than the card has ends with `torch.OutOfMemoryError` where it would on the card.
"""

import contextlib

import torch

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import StepTime, replay_clock
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import device as catalogue_device
from forerun.memory.allocator import CachingAllocator, SimulatedOutOfMemory
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.trace import Phase, Trace
from forerun.units import format_bytes
from forerun.virtual.phases import recognising_phases
from forerun.virtual.session import VirtualSession

MOST_LISTED = 10
"""Storages that are listed when a card is full."""


class CardMemory:
    """The caching allocator of a card, failing as PyTorch's does."""

    def __init__(self, device: Device):
        self._device = device
        self._sizes: dict[int, int] = {}
        self.largest_at_failure: list[int] = []
        """Keys of the largest storages that were alive when an allocation failed last."""
        self._allocator = CachingAllocator(int(device.memory_bytes - device.context_bytes.expected))
        for number, size in enumerate(workspace_bytes(device)):
            self._allocator.allocate(-1 - number, size)

    def allocate(self, key: int, size: int) -> None:
        """Give `size` bytes to the storage `key`.

        Raises:
            torch.OutOfMemoryError: the card is full, even with cached memory given back.
        """
        try:
            self._allocator.allocate(key, size)
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
        error.tried_bytes = size  # type: ignore[attr-defined]
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
        return (self._allocator.capacity_bytes or 0) - self._allocator.reserved_bytes

    def empty_cache(self) -> None:
        """Give unused segments back to the driver."""
        self._allocator.flush()

    def reset_peaks(self) -> None:
        """Look for peaks from now on."""
        self._allocator.reset_peaks()


class VirtualGPU:
    """A virtual GPU in use, from `virtual_gpu`."""

    def __init__(self, device: Device, attention: str, *, limited: bool):
        self._device = device
        self._session = VirtualSession(device, attention)
        self._session.recorder.card = CardMemory(device) if limited else None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "VirtualGPU":
        self._stack.enter_context(self._session)
        self._stack.enter_context(recognising_phases(self._session.recorder))
        self._stack.enter_context(self._session.recorder.phase(Phase.FORWARD, 0))
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.recorder.is_closed = True
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """The torch device to build on or move to."""
        return self._session.torch_device

    @property
    def trace(self) -> Trace:
        """Everything recorded so far."""
        return self._session.recorder.trace

    @property
    def memory(self) -> MemoryReplay:
        """Peaks, breakdown and curve of what ran so far, in bytes."""
        is_host = self._device.kind == "cpu"
        return replay_memory(self.trace, is_host=is_host, workspace_bytes=workspace_bytes(self._device), passes=1)

    @property
    def clock(self) -> StepTime:
        """Time of what ran so far, in seconds."""
        return replay_clock(self.trace, PriorCosts(self._device))


def virtual_gpu(name: str, *, attention: str = "auto", limited: bool = True) -> VirtualGPU:
    """A virtual GPU of the catalogue; use it as a context manager. Unless it is `limited` it has memory without end.

    Raises:
        UnknownDevice: no such GPU.
    """
    return VirtualGPU(catalogue_device(name), attention, limited=limited)
