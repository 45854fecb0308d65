"""How long a convolution takes on a GPU: its products, and what cuDNN does around them.

A convolution is up to three kernels: the result, the gradient of the image, the gradient of the weights. Each is a
matrix product without the matrix being made (implicit GEMM), whose shape follows from images N, result positions PQ,
channels C and K, taps RS and groups G:

| kernel | rows | columns | inner |
|---|---|---|---|
| forward | N PQ | K / G | C / G x RS |
| image gradient | N HW | C / G | K / G x RS x PQ / HW |
| weight gradient | K / G | C / G x RS | N PQ, split among multiprocessors |

Products are timed by `products.py`. Tensor cores want channels in multiples of eight, others are padded, which copies
the image. In fp16 and bf16 they want channels last: cuDNN converts what is laid out otherwise, value by value, which
takes as many cycles of the multiprocessors whichever the dtype and however fast the memory: ResNet-50 and SSD300 on
twelve cards (`benchmarks/many_cards`) go by elements, not by bytes. With as many groups as
channels (depthwise) there is nothing to multiply by: those kernels are bound by bytes and by arithmetic without tensor
cores, and PyTorch's own kernels for them read everything once per tap for the gradient of the weights.

Source of the shapes: NVIDIA, Convolutional Layers User's Guide (DU-09799-001), table 1; of PyTorch's choice of kernel:
`use_cudnn_depthwise`, `aten/src/ATen/native/Convolution.cpp` (PyTorch 2.13). Coefficients: `priors.json`, made by
`benchmarks/vision/fit.py`. Not covered: which algorithm cuDNN finds fastest (Winograd, FFT).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.products import Array, Products
from forerun.trace import Call, TensorSpec

Parts = dict[str, float]
"""Seconds of a call by the coefficient that multiplies them."""
CONVOLUTIONS = ("convolution", "convolution_backward")
"""Operators whose arguments `shape_of` reads; PyTorch decomposes all others into them before they are recorded."""
DENSE = ("dense_forward", "dense_image", "dense_weights")
"""Coefficients of products on tensor cores; they differ from GPU to GPU."""
ALIGNED_BYTES = 16
"""Channels of one position come to tensor cores in so many bytes (NVIDIA, Convolutional Layers User's Guide, section 2:
eight channels in fp16, four in TF32)."""
MOST_PACKED = 16
"""Channels of a group in cuDNN's kernels for grouped convolutions with channels last. Inferred from the steps fitted:
NFNet (128), ResNeSt (24 to 192), Visformer (24) and SE-ResNeXt-26ts (32) are slower than without, ResNeXt (4 to 16) is
not."""
SPLITS = (1, 4, 16, 64, 256)
"""Parts that the long inner dimension of a weight gradient is cut into."""
PARTIAL_BYTES = 4
"""Bytes of one number of a partial sum."""


@dataclass(frozen=True)
class Convolution:
    """Shape of a convolution; of a transposed one that of the convolution that it is the gradient of."""

    images: int
    inputs: int
    """Channels of the image, C."""
    outputs: int
    """Channels of the result, K."""
    groups: int
    image_positions: int
    result_positions: int
    taps: int
    strides: int
    """Product of the strides."""
    width: int
    """Bytes of an element."""
    channels_last: bool
    has_cudnn_depthwise: bool = True
    """Where it is depthwise and not channels last: PyTorch takes cuDNN's kernels, not its own."""
    is_transposed: bool = False

    @property
    def is_depthwise(self) -> bool:
        """Each group has one channel of the image."""
        return self.groups == self.inputs and self.groups > 1

    @property
    def is_point(self) -> bool:
        """One tap on every position: the tensors are the matrices, in either layout."""
        return self.taps == 1 and self.strides == 1

    @property
    def has_packed_groups(self) -> bool:
        """Channels of a group are a power of two up to 16: channels last, cuDNN runs others without tensor cores."""
        sizes = (self.inputs // self.groups, self.outputs // self.groups)
        return all(n <= MOST_PACKED and not n & (n - 1) for n in sizes)

    @property
    def image_bytes(self) -> int:
        """Bytes of the image."""
        return self.width * self.images * self.inputs * self.image_positions

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return self.width * self.images * self.outputs * self.result_positions

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self.width * self.outputs * (self.inputs // self.groups) * self.taps

    @property
    def flops(self) -> float:
        """FLOP of one of the three kernels."""
        return 2.0 * self.images * self.result_positions * self.outputs * (self.inputs // self.groups) * self.taps


def shape_of(call: Call) -> Convolution:
    """The convolution of a call of `aten.convolution` or `aten.convolution_backward`."""
    if is_backward(call):
        result, image, weight, _, stride, _, dilation, transposed, _, groups, _ = call.arguments
    else:
        image, weight, _, stride, _, dilation, transposed, _, groups = call.arguments
        result = call.outputs[0]
    if transposed:
        image, result = result, image
    sides = weight.shape[2:]
    return Convolution(
        images=image.shape[0],
        inputs=image.shape[1],
        outputs=result.shape[1],
        groups=groups,
        image_positions=math.prod(image.shape[2:]),
        result_positions=math.prod(result.shape[2:]),
        taps=math.prod(weight.shape[2:]),
        strides=math.prod(stride),
        width=image.bytes // max(1, math.prod(image.shape)),
        channels_last=is_channels_last(image) or is_channels_last(weight),
        # `use_cudnn_depthwise`, aten/src/ATen/native/Convolution.cpp (2.13); its table for stride 2 is taken as yes
        has_cudnn_depthwise=image.dtype != "float32"
        and max(dilation) == 1
        and image.shape[1] >= 32
        and len(sides) == 2
        and sides[0] == sides[1]
        and sides[0] in (1, 3, 5)
        and image.shape[3] >= 7
        and max(stride) <= 2,
        is_transposed=transposed,
    )


def is_backward(call: Call) -> bool:
    """Whether the call computes gradients."""
    return "convolution_backward" in call.name


def is_channels_last(spec: TensorSpec) -> bool:
    """Whether neighbours in memory are channels of one position; a tensor of one channel or position is not."""
    return len(spec.shape) > 3 and spec.stride[1] == 1 and spec.shape[1] > 1 and math.prod(spec.shape[2:]) > 1


def kernels_of(call: Call, shape: Convolution) -> list[str]:
    """Which of "forward", "image" and "weights" the call runs, as of the convolution that `shape` describes."""
    if not is_backward(call):
        return ["image" if shape.is_transposed else "forward"]
    wants_image, wants_weights, _ = call.arguments[-1]
    first = "forward" if shape.is_transposed else "image"
    return [first] * wants_image + ["weights"] * wants_weights


@dataclass(frozen=True)
class ConvolutionModel:
    """Parts of a convolution's time on one GPU."""

    product_seconds: Callable[[Products], Array]
    """Seconds of products in the dtype of the convolution."""
    bytes_per_second: float
    plain_flops_per_second: float
    """FLOP/s without tensor cores."""
    on_tensor_cores: bool
    cycles_per_second: float
    """Of all multiprocessors together."""

    def parts(self, call: Call) -> Parts:
        """Seconds by coefficient, before it is applied."""
        shape = shape_of(call)
        parts: Parts = {}
        for kernel in kernels_of(call, shape):
            for name, seconds in self._kernel(shape, kernel).items():
                parts[name] = parts.get(name, 0.0) + seconds
        _merge(parts, self._copies(call, shape))
        if is_backward(call) and call.arguments[-1][2]:
            parts["bias_gradient"] = KERNEL_SECONDS + call.arguments[0].bytes / self.bytes_per_second
        return parts

    def _kernel(self, shape: Convolution, kernel: str) -> Parts:
        if shape.is_depthwise:
            return self._depthwise(shape, kernel)
        name = f"{'dense' if self.on_tensor_cores else 'plain'}_{kernel}"
        if shape.groups > 1:
            if shape.channels_last and not shape.has_packed_groups:
                return {f"grouped_plain_{kernel}": KERNEL_SECONDS + shape.flops / self.plain_flops_per_second}
            name = f"grouped_{'last' if shape.channels_last else 'first'}_{kernel}"
        parts = {name: self._product(shape, kernel)}
        if self.on_tensor_cores:
            _merge(parts, self._conversions(shape, kernel))
        return parts

    def _product(self, shape: Convolution, kernel: str) -> float:
        """Seconds of the product of one kernel, by the fastest split where it is split."""
        inputs, outputs = (n // shape.groups for n in (shape.inputs, shape.outputs))
        if self.on_tensor_cores and shape.groups == 1:
            inputs, outputs = (_padded(n, shape.width) for n in (inputs, outputs))
        positions = shape.images * shape.result_positions
        moved = shape.image_bytes + shape.result_bytes + shape.weight_bytes
        if kernel == "weights":
            partial_bytes = 2 * PARTIAL_BYTES * shape.weight_bytes / shape.width
            splits = [n for n in SPLITS if n == 1 or positions // n >= 2 * ALIGNED_BYTES]
            ways = [
                (shape.groups * n, outputs, inputs * shape.taps, positions / n, moved + (n > 1) * n * partial_bytes)
                for n in splits
            ]
            return self._fastest(ways, shape)
        if kernel == "forward":
            return self._fastest([(shape.groups, positions, outputs, inputs * shape.taps, moved)], shape)
        rows, share = shape.images * shape.image_positions, shape.result_positions / shape.image_positions
        inner = max(1.0, outputs * shape.taps * share)
        return self._fastest([(shape.groups, rows, inputs, inner, moved)], shape)

    def _fastest(self, ways: list[tuple[float, ...]], shape: Convolution) -> float:
        """Seconds of the fastest of some products: batch, rows, columns, inner dimension and bytes of each."""
        batch, m, n, k, moved = (np.array(column, dtype=float) for column in zip(*ways, strict=True))
        return float(self.product_seconds(Products(batch, m, n, k, width=shape.width, moved_bytes=moved)).min())

    def _conversions(self, shape: Convolution, kernel: str) -> Parts:
        """Copies into the layout and the channel counts that tensor cores take, and back."""
        sides = {"forward": (shape.image_bytes, shape.result_bytes), "image": (shape.result_bytes, shape.image_bytes),
                 "weights": (shape.image_bytes, shape.result_bytes)}[kernel]  # fmt: skip
        if not shape.channels_last:
            name = "conversion" if kernel == "forward" else "conversion_backward"
            moved = sum(KERNEL_SECONDS + b / shape.width / self.cycles_per_second for b in sides)
            return {f"{name}_point" if shape.is_point else name: moved}
        channels = {"forward": (shape.inputs, shape.outputs), "image": (shape.outputs, shape.inputs),
                    "weights": (shape.inputs, shape.outputs)}[kernel]  # fmt: skip
        odd = [b for b, c in zip(sides, channels, strict=True) if c != _padded(c, shape.width)]
        return {"padding": sum(self._copy(b) for b in odd)} if odd and shape.groups == 1 else {}

    def _copy(self, size: int) -> float:
        """Seconds to read and write so many bytes."""
        return KERNEL_SECONDS + 2 * size / self.bytes_per_second

    def _depthwise(self, shape: Convolution, kernel: str) -> Parts:
        kind = "last" if shape.channels_last else "first" if shape.has_cudnn_depthwise else "native"
        moved = shape.image_bytes + shape.result_bytes
        # conv_depthwise2d_grad_weight_kernel, DepthwiseConv2d.cu: each tap of each channel goes through all images
        passes = shape.taps if (kind, kernel) == ("native", "weights") else 1
        return {
            f"depthwise_{kind}_{kernel}": KERNEL_SECONDS + passes * moved / self.bytes_per_second,
            f"depthwise_{kind}_arithmetic": shape.flops / self.plain_flops_per_second,
        }

    def _copies(self, call: Call, shape: Convolution) -> Parts:
        """Operands with gaps (a slice of the channels) or laid out unlike the others are copied first."""
        images = [call.arguments[0], *([call.arguments[1]] if is_backward(call) else [])]
        copied = [x for x in images if has_gaps(x) or _differs(x, shape)]
        return {"padding": sum(self._copy(x.bytes) for x in copied)} if copied else {}


def has_gaps(spec: TensorSpec) -> bool:
    """Whether elements of the tensor do not lie side by side, or lie on each other."""
    reach = 1 + sum((length - 1) * step for length, step in zip(spec.shape, spec.stride, strict=True))
    return reach != math.prod(spec.shape)


def _differs(spec: TensorSpec, shape: Convolution) -> bool:
    """Whether a tensor has another layout than the convolution; where there is one position there is only one."""
    return len(spec.shape) > 3 and math.prod(spec.shape[2:]) > 1 and is_channels_last(spec) != shape.channels_last


def _padded(channels: int, width: int) -> int:
    multiple = ALIGNED_BYTES // width
    return -(-channels // multiple) * multiple


def _merge(parts: Parts, others: Parts) -> None:
    for name, seconds in others.items():
        parts[name] = parts.get(name, 0.0) + seconds
