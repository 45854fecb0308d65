"""How often the layers between convolutions pass over memory: BatchNorm, pooling, changes of layout.

BatchNorm in training reads its input for the statistics and again to normalise; its backward pass reads input and
gradient for two sums and again for the result. What stays in registers or L2 between the passes is saved: cuDNN's
persistent kernels do that, which PyTorch takes for channels last only (`aten/src/ATen/native/cudnn/BatchNorm.cpp`,
`getCudnnBatchNormMode`, 2.13). A gradient laid out unlike the image is copied first. Each part of a call's time is the
bytes that one pass moves, at full bandwidth; the coefficients in `priors.json`, made by `benchmarks/vision/fit.py`,
say how many such passes its kernels take. Pooling reads its input several times, through caches.
Copies from one layout into another, and channels put side by side where they are neighbours, are as slow: PyTorch's
kernels for them do not read and write in order at once. Everything else is priced by its bytes.
"""

from forerun.clock.convolutions import Parts, is_channels_last
from forerun.clock.costs import KERNEL_SECONDS
from forerun.trace import Call, TensorSpec

POOLS = ("max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
"""Parts of the names of pooling operators; adaptive ones too."""
COPIES = ("copy_", "clone", "_to_copy")
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
            parts["conversion"] = KERNEL_SECONDS + 2 * images[0].bytes / bytes_per_second
        return parts
    if any(pool in name for pool in POOLS):
        return {f"pooling_{direction}": moving}
    if name in COPIES and call.inputs and _transposes(call.inputs[-1], call.outputs[0]):
        return {"transposition": moving}
    if name == "cat" and is_channels_last(call.outputs[0]) and call.arguments[1:] == (1,):
        return {"concatenation": moving}
    return None


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
