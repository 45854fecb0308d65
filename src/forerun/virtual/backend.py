"""The torch device `virtual`: a device type without silicon, in PyTorch's out-of-tree slot.

Tensors on it exist only under `FakeTensorMode`; the backend module answers what PyTorch asks of any accelerator (random
state for activation checkpointing, autocast dtypes, synchronisation). `registration.py` registers it.
Source: `torch/utils/backend_registration.py` (2.13).
"""

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch.utils import backend_registration

DEVICE = "virtual"


class VirtualBackend(backend_registration._DummyBackendModule):
    """What `torch.virtual` offers; there is nothing to wait for."""

    Stream: type["Stream"]
    Event: type["Event"]
    ranks = 1
    """Ranks of the process group; this process plays one of them."""
    ranks_per_machine: int | None = None
    """Of these, how many are in each machine; None where a launcher's environment says so."""
    cards = 1
    """Cards that this process drives by itself."""
    present_card = 0
    """Of these, the one that is meant where none is named."""
    _streams: list["Stream"]
    _stream_numbers: Iterator[int] = itertools.count(1)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Both 16-bit formats; whether the target has them is checked against its hardware record."""
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """State of the device's generator, on the host as on CUDA (16 bytes)."""
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        """Does nothing: no numbers are drawn."""

    def synchronize(self, device: object = None) -> None:
        """Returns at once."""

    @contextlib.contextmanager
    def device(self, device: object) -> Iterator[None]:
        """There is only device 0."""
        yield

    def device_count(self) -> int:
        """As many as the process group has ranks, or as the process drives."""
        return max(self.ranks, self.cards)

    def current_device(self) -> int:
        """The card that is meant where none is named."""
        return VirtualBackend.present_card

    def set_device(self, device: object) -> None:
        """There is only device 0."""

    def current_stream(self, device: object = None) -> "Stream":
        """The stream that work is issued to."""
        return self._streams[-1]

    @contextlib.contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        """Issue work to `stream`: the allocator keeps a pool for each."""
        self._streams.append(stream)
        try:
            yield
        finally:
            self._streams.pop()


class Stream:
    """An order of work; everything here happens at once, so only its number matters: 0 is the default one."""

    def __init__(self, device: object = None, *, priority: int = 0, number: int | None = None):
        self.number = next(VirtualBackend._stream_numbers) if number is None else number

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event that has passed."""
        return event or Event()


class Event:
    """An event that has always passed."""

    def __init__(self, *_: object, **__: object):
        pass

    def record(self, stream: object = None) -> None:
        """Nothing to note."""

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


VirtualBackend.Stream, VirtualBackend.Event = Stream, Event
VirtualBackend._streams = [Stream(number=0)]


def number_streams_anew() -> None:
    """Streams that are made from now on have the numbers that a fresh process gives them."""
    VirtualBackend._stream_numbers = itertools.count(1)


def current_stream() -> int:
    """Number of the stream that work is issued to."""
    return VirtualBackend._streams[-1].number
