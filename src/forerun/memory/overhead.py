"""Device memory that no tensor holds: library workspaces inside the allocator, and the context outside it.

cuBLAS keeps one workspace per handle and stream, taken from the caching allocator at its first product. Forward and
backward run on different threads with a handle each, so a training step holds two.
Source: `aten/src/ATen/cuda/CublasHandlePool.cpp`, `getChosenWorkspaceSize`, `parseChosenWorkspaceSize`, PyTorch 2.13:
default `:4096:2:16:8` KiB, and 32 MiB on compute capability 9.0 and above; pytorch/pytorch#95668 reports the 8.5 MB.
"""

from collections.abc import Sequence

from forerun.hardware.catalogue import Device
from forerun.records import Range
from forerun.trace import OP, Phase, Trace
from forerun.units import KIB, MIB

CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * KIB
CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MIB
HANDLES = 2
"""cuBLAS handles of a training step: one of the thread that runs forward, one of the thread that runs backward."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_addmm_activation", "addmv", "mv", "dot")
"""Operators that cuBLAS runs."""
NCCL_PAIR_BYTES, NCCL_BYTES, NCCL_MOST_BYTES = 544 * MIB, 688 * MIB, 1638 * MIB
"""Bytes that the first all-reduce of a communicator takes outside PyTorch's allocator: of two and of more A100s with
NVLink (NVIDIA/nccl#964), and the most that a communicator's user reports (1.6 GB, NVIDIA/nccl#864)."""


def workspace_places(trace: Trace, blocks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where in the events each handle's workspace is taken: position → key (negative) and bytes.

    The first is taken by the first product, the second by the first one of a backward pass; a program without products
    has none. A block that is cut from what an earlier step left cached keeps that from being used whole again.
    """
    names = {f"aten.{name}" for name in PRODUCTS}
    products = {number for number, call in enumerate(trace.calls) if call.name.rpartition(".")[0] in names}
    places: dict[int, tuple[int, int]] = {}
    waiting = dict(zip((False, True), enumerate(blocks), strict=False))
    for position, (kind, index) in enumerate(trace.events):
        if not waiting:
            break
        if kind != OP or trace.ops[index].call not in products:
            continue
        is_backward = trace.ops[index].phase is Phase.BACKWARD
        if is_backward in waiting:
            number, size = waiting.pop(is_backward)
            places[position] = (-1 - number, size)
    return places


def uses_cudnn(trace: Trace) -> bool:
    """Whether the step runs convolutions, and so loads cuDNN's kernels besides PyTorch's."""
    return any("convolution" in call.name for call in trace.calls)


def outside_bytes(device: Device, world_size: int, *, with_cudnn: bool = False) -> Range:
    """Bytes outside PyTorch's allocator: the context, kernels of cuDNN, and with several ranks NCCL's buffers."""
    context, cudnn = device.context_bytes, device.cudnn_bytes if with_cudnn else 0
    least, expected, most = (0, 0, 0) if world_size == 1 else (NCCL_PAIR_BYTES, NCCL_BYTES, NCCL_MOST_BYTES)
    return Range(
        optimistic=context.optimistic + cudnn + least,
        expected=context.expected + cudnn + (least if world_size == 2 else expected),
        conservative=context.conservative + cudnn + most,
    )


def workspace_bytes(device: Device) -> list[int]:
    """Blocks that cuBLAS holds through the allocator during training, in bytes."""
    if device.kind != "cuda" or device.compute_capability is None:
        return []
    one = CUBLAS_WORKSPACE_HOPPER_BYTES if device.compute_capability >= (9, 0) else CUBLAS_WORKSPACE_BYTES
    return [one] * HANDLES
