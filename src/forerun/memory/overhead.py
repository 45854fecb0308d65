"""Device memory that no tensor holds: library workspaces inside the allocator, and the context outside it.

cuBLAS keeps one workspace per handle and stream, taken from the caching allocator at its first product. Forward and
backward run on different threads with a handle each, so a training step holds two.
Source: `aten/src/ATen/cuda/CublasHandlePool.cpp`, `getChosenWorkspaceSize`, `parseChosenWorkspaceSize`, PyTorch 2.13:
default `:4096:2:16:8` KiB, and 32 MiB on compute capability 9.0 and above; pytorch/pytorch#95668 reports the 8.5 MB.
"""

from forerun.hardware.catalogue import Device
from forerun.units import KIB, MIB

CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * KIB
CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MIB
HANDLES = 2
"""One of the thread that runs forward, one of the thread that runs backward."""


def workspace_bytes(device: Device) -> list[int]:
    """Blocks that cuBLAS holds through the allocator during training, in bytes."""
    if device.kind != "cuda" or device.compute_capability is None:
        return []
    one = CUBLAS_WORKSPACE_HOPPER_BYTES if device.compute_capability >= (9, 0) else CUBLAS_WORKSPACE_BYTES
    return [one] * HANDLES
