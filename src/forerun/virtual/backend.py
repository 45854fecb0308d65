"""The torch device `virtual`: a device type without silicon, in PyTorch's out-of-tree slot.

Registered once per process, on first use. Tensors on it exist only under `FakeTensorMode`; the backend module answers
what PyTorch asks of any accelerator (random state for activation checkpointing, autocast dtypes, synchronisation).
Source: `torch.utils.backend_registration`, PyTorch 2.13.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import backend_registration

DEVICE = "virtual"


class VirtualBackend(backend_registration._DummyBackendModule):
    """What `torch.virtual` offers; there is one device and nothing to wait for."""

    Stream: type["Stream"]
    Event: type["Event"]
    ranks = 1
    """Of the process group that this process plays a rank of."""
    _streams: list["Stream"]

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
        """One, or as many as the process group has ranks."""
        return self.ranks

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
        self.number = next(_STREAM_NUMBERS) if number is None else number

    def wait_event(self, event: object) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event that has passed."""
        return event or Event()


class Event:
    """Has always passed."""

    def __init__(self, *_: object, **__: object):
        pass

    def record(self, stream: object = None) -> None:
        """Nothing to note."""

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


_STREAM_NUMBERS = itertools.count(1)
VirtualBackend.Stream, VirtualBackend.Event = Stream, Event
VirtualBackend._streams = [Stream(number=0)]


def current_stream() -> int:
    """Number of the stream that work is issued to."""
    return VirtualBackend._streams[-1].number


@functools.cache
def register() -> None:
    """Register the device with PyTorch; the second call does nothing."""
    backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=VirtualBackend())
    _register_real_storage()
    _register_one_kernel_operators()
    from forerun.virtual import attention, autocast

    autocast.register()
    attention.register()


ONE_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that are one kernel on CUDA but fall apart into many on a device that has none of its own."""


def _register_one_kernel_operators() -> None:
    """With a kernel registered they arrive whole, and their fake kernels answer; these are never called."""
    library = torch.library.Library("aten", "IMPL")
    _KEPT.append(library)

    def never_called(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("the virtual device computes nothing; use it under its session")

    for name in ONE_KERNEL:
        library.impl(name, never_called, "PrivateUse1")


def _register_real_storage() -> None:
    """`torch.tensor([...], device="virtual")` copies from the host below the fake mode: give it somewhere to go."""
    acc: Any = getattr(torch._C, "_acc")  # noqa: B009 (private, without type stubs)
    library = torch.library.Library("aten", "IMPL")
    _KEPT.append(library)

    def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        return acc.create_empty_tensor(list(size), dtype or torch.get_default_dtype())

    def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return acc.create_empty_tensor(list(size), dtype or torch.get_default_dtype())

    def copy_from(source, target, non_blocking=False):
        return target

    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")


_KEPT: list[torch.library.Library] = []
