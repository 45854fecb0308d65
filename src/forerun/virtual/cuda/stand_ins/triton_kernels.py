"""Triton kernels of a program: each launch is one operator, if the program says what the kernel writes and computes.

Triton asks for a driver as soon as CUDA is there, and would compile for it. While a program runs, an installed Triton
gets a driver that answers for the virtual card, and launching a kernel (`kernel[grid](...)`) goes to the stand-in of
its name; without one it is an error that names the kernel and shows how to register it.

Source: `triton/runtime/jit.py` (`KernelInterface.__getitem__`), `triton/runtime/driver.py` (`DriverConfig`), 3.4.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import Any

import torch

from forerun.virtual.cuda.cards import this_card
from forerun.virtual.cuda.stand_ins.registry import explain_missing, registered, stand_in
from forerun.virtual.cuda.stand_ins.trl_kernels import KERNELS

WARP_THREADS = 32


@stand_in("_fill_indices_kernel")
def _fill_indices(*_: Any, **__: Any) -> None:
    """Rows of each expert in order (`torchtitan/models/moe/kernels.py`, 0.2.2): writes whole numbers in place."""


class VirtualDriver:
    """What Triton asks of the device that is there."""

    def __init__(self, capability: tuple[int, int]):
        self._capability = capability

    def get_current_target(self) -> Any:
        """Backend, architecture and threads of a warp."""
        major, minor = self._capability
        return SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=WARP_THREADS)

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        """The default one."""
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Compute capability."""
        return self._capability

    def get_active_torch_device(self) -> torch.device:
        """The device that programs name."""
        return this_card()

    def get_device_interface(self) -> Any:
        """PyTorch's."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """Nothing takes time, so the first configuration of an autotuned kernel is as good as any."""
        return lambda function, **_: [0.0, 0.0, 0.0]


def kernel_name(kernel: Any) -> str:
    """Name of the Python function behind a kernel and its autotuner or heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__name__", type(kernel).__name__)


def _module_of(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__module__", "")


def _launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        name = kernel_name(kernel)
        known_kernel = registered(name) or KERNELS.get(f"{_module_of(kernel)}.{name}")
        if known_kernel is None:
            raise NotImplementedError(explain_missing(name))
        with torch.no_grad():
            return known_kernel(*args, **options)

    return run


@contextlib.contextmanager
def virtual_triton(capability: tuple[int, int]) -> Iterator[None]:
    """Let an installed Triton find the virtual card, and send launches to stand-ins."""
    if PathFinder.find_spec("triton") is None:
        yield
        return
    jit, driver = (importlib.import_module(f"triton.runtime.{name}") for name in ("jit", "driver"))
    interface, config = jit.KernelInterface, driver.driver
    original, before = interface.__getitem__, dict(vars(config))
    interface.__getitem__ = _launcher
    config.set_active(VirtualDriver(capability))
    try:
        yield
    finally:
        interface.__getitem__ = original
        # `reset_active` would look for a driver (triton/runtime/driver.py:46, 3.9), and there may be none here
        vars(config).clear()
        vars(config).update(before)
