"""Registers the virtual device with PyTorch: its backend module, its storage, its autocast policy, its attention.

PyTorch cannot take a registration back, so this happens once per process, on first use.
Source: `torch/utils/backend_registration.py` (2.13), `_setup_privateuseone_for_python_backend`.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import backend_registration

from forerun.virtual import attention, autocast, recurrent
from forerun.virtual.backend import DEVICE, VirtualBackend
from forerun.virtual.device_guard import device_guard

ONE_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators that are one kernel on CUDA but fall apart into many on a device that has none of its own."""
_LIBRARIES: list[torch.library.Library] = []
"""A `Library` withdraws its kernels when it is garbage-collected, so each is referenced until the process ends."""


@functools.cache
def register() -> None:
    """Register the device with PyTorch; the second call does nothing."""
    backend_registration._setup_privateuseone_for_python_backend(
        DEVICE, backend_module=VirtualBackend(), device_guard=device_guard()
    )
    _register_real_storage()
    _register_one_kernel_operators()
    autocast.register()
    attention.register()
    recurrent.register()
    if torch.cuda.is_available():
        _leave_pinning_to_cuda()


def is_registered() -> bool:
    """Whether this process has the device."""
    return register.cache_info().currsize > 0


def _leave_pinning_to_cuda() -> None:
    """Let what pins memory without naming a device mean CUDA, as before there was a virtual device.

    PyTorch asks the accelerator of the process, which is the virtual device from now on, and it has no such allocator.
    """
    message = r"The argument 'device' of Tensor\.(pin_memory|is_pinned)"
    warnings.filterwarnings("ignore", message, DeprecationWarning)
    for name in ("pin_memory", "is_pinned"):
        setattr(torch.Tensor, name, _of_cuda(getattr(torch.Tensor, name)))


def _of_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(tensor: torch.Tensor, device: Any = "cuda") -> Any:
        return original(tensor, device)

    return call


def _register_one_kernel_operators() -> None:
    """Register kernels that keep these operators whole; their fake kernels answer, these are never called."""
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)

    def never_called(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("the virtual device computes nothing; use it under its session")

    for name in ONE_KERNEL:
        library.impl(name, never_called, "PrivateUse1")


def _register_real_storage() -> None:
    """`torch.tensor([...], device="virtual")` copies from the host below the fake mode: give it somewhere to go."""
    acc: Any = getattr(torch._C, "_acc")  # noqa: B009 (private, without type stubs)
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)

    def empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        return acc.create_empty_tensor(list(size), dtype or torch.get_default_dtype())

    def empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return acc.create_empty_tensor(list(size), dtype or torch.get_default_dtype())

    def copy_from(source, target, non_blocking=False):
        return target

    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
