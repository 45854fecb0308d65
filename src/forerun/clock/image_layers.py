"""How often the layers between convolutions pass over memory: BatchNorm, pooling, changes of layout.

BatchNorm in training reads its input for the statistics and again to normalise; its backward pass reads input and
gradient for two sums and again for the result. What stays in registers or L2 between the passes is saved: cuDNN's
persistent kernels do that, which PyTorch takes for channels last only (`aten/src/ATen/native/cudnn/BatchNorm.cpp`,
`getCudnnBatchNormMode`, 2.13). A gradient laid out unlike the image is copied first. Each part of a call's time is the
bytes that one pass moves, at full bandwidth; the coefficients in `priors.json`, made by `benchmarks/vision/fit.py`,
say how many such passes its kernels take. Pooling reads its input several times, through caches.
Where cuDNN is not asked (16 bits of bfloat16, no weight, rows without places: `_select_batch_norm_backend` of
`aten/src/ATen/native/Normalization.cpp`, 2.11), one block of PyTorch's own kernel sums each channel of contiguous
images, so that few channels leave most multiprocessors idle (`native_norm_seconds`).
Copies from one layout into another, and channels put side by side where they are neighbours, are as slow: PyTorch's
kernels for them do not read and write in order at once. Everything else is priced by its bytes.
"""

import math

from forerun.clock.convolutions import Parts, is_channels_last
from forerun.clock.costs import KERNEL_SECONDS
from forerun.trace import Call, TensorSpec

POOLS = ("max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
"""Parts of the names of pooling operators; adaptive ones too."""
COPIES = ("copy_", "clone", "_to_copy")
BLOCK_ELEMENTS_PER_CLOCK, BLOCKS_AT_ONCE = 0.6, 2.2
"""Of one channel, and on one multiprocessor: 32 channels of 48^3 voxels took an H100 1.0 to 1.2 billion elements a
second each, in float32 as in bfloat16, and 512 of one volume 2.2 times as much as one block on each multiprocessor
(benchmarks/truth/operators-h100-80gb.csv, the half that is fitted)."""
MOST_OF_CUDNN = 2**31 - 1
"""Elements of a tensor; cuDNN's kernels count them in 32 bits."""
BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")


def image_layer_parts(call: Call, bytes_per_second: float) -> Parts | None:
    """Seconds by coefficient of what passes over memory more than once; None of other operators."""
    name = call.name.split(".")[1]
    direction = "backward" if "backward" in name else "forward"
    moving = KERNEL_SECONDS + (call.bytes_read + call.bytes_written) / bytes_per_second
    if name.startswith(BATCH_NORMS):
        if not _trains(call) or not call.outputs:
            return None
        images = call.inputs[:2] if direction == "backward" else call.inputs[:1]
        layout = "last" if is_channels_last(images[-1]) else "first"
        parts = {f"batch_norm_{layout}_{direction}": moving}
        if is_channels_last(images[0]) != is_channels_last(images[-1]):
            parts["padding"] = KERNEL_SECONDS + 2 * images[0].bytes / bytes_per_second
        return parts
    if any(pool in name for pool in POOLS):
        return {f"pooling_{direction}": moving}
    if name in COPIES and call.inputs and _transposes(call.inputs[-1], call.outputs[0]):
        return {"transposition": moving}
    if name == "cat" and is_channels_last(call.outputs[0]) and call.arguments[1:] == (1,):
        return {"concatenation": moving}
    return None


def native_norm_seconds(call: Call, bytes_per_second: float, multiprocessors: int, clock_hertz: float) -> float | None:
    """Seconds of a BatchNorm in training that PyTorch's own kernels do on contiguous images; None of all others.

    The forward pass sums, then normalises in a kernel that fills the card; the backward pass does both in one block for
    each channel (`Normalization.cuh`, `batch_norm_collect_statistics_kernel`, `batch_norm_backward_kernel`, 2.11).
    """
    name = call.name.split(".")[1]
    if not name.startswith(BATCH_NORMS) or not call.inputs or not _trains(call) or not call.outputs:
        return None
    is_backward = "backward" in name
    image = call.inputs[1 if is_backward else 0]
    if _is_for_cudnn(call, image, is_backward=is_backward) or (len(image.shape) > 3 and is_channels_last(image)):
        return None
    elements, channels = math.prod(image.shape), image.shape[1] if len(image.shape) > 1 else 1
    blocks = multiprocessors * BLOCKS_AT_ONCE
    sweep = elements / channels / (BLOCK_ELEMENTS_PER_CLOCK * clock_hertz) * max(1.0, channels / blocks)
    one_pass = image.bytes / bytes_per_second
    if is_backward:
        return KERNEL_SECONDS + max(2 * one_pass, sweep) + max(3 * one_pass, sweep)
    return 2 * KERNEL_SECONDS + max(one_pass, sweep) + 2 * one_pass


def _is_for_cudnn(call: Call, image: TensorSpec, *, is_backward: bool) -> bool:
    weight = call.arguments[2 if is_backward else 1] if len(call.arguments) > 2 else None
    if not isinstance(weight, TensorSpec) or len(image.shape) < 3 or math.prod(image.shape) > MOST_OF_CUDNN:
        return False
    widens = image.dtype != "float16" or weight.dtype == "float32"
    return "bfloat16" not in (image.dtype, weight.dtype) and widens


def _transposes(source: TensorSpec, target: TensorSpec) -> bool:
    """Whether a copy of an image has its neighbours in memory along another dimension."""
    if len(target.shape) not in (3, 4) or source.shape != target.shape:
        return False
    return _innermost(source) != _innermost(target)


def _innermost(spec: TensorSpec) -> int | None:
    steps = zip(spec.shape, spec.stride, strict=True)
    return next((dimension for dimension, (length, step) in enumerate(steps) if length > 1 and step == 1), None)


def _trains(call: Call) -> bool:
    """Whether a BatchNorm takes the statistics of its batch."""
    return next((value for value in call.arguments if isinstance(value, bool)), False)
