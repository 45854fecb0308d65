# ruff: noqa: E501 (tables)
"""Ground truth of single operators on one CUDA GPU: seconds and scratch memory, and what a call costs its host.

    python3 benchmarks/truth/measure_operators.py OUT.csv [SECONDS]

Needs PyTorch alone, not this package; `benchmarks.truth.operators` forecasts the same `cases`. GPU seconds lie between
two events around `TURNS` calls, queued behind a kernel that sleeps until the host has issued them all. Scratch is what
the allocator's peak has beyond the results of one call. Host seconds are those of one call among `CALLS`, nothing
waiting for the GPU. Rows are written in an order that mixes the kinds, so that what is cut off at SECONDS (120) is a
sample of all.
"""

import csv
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

TURNS, CALLS = 8, 300
FIELDS = ("kind", "name", "dtype", "layout", "seconds", "scratch_bytes", "gpu", "torch", "error")
Case = tuple[str, str, str, str, Callable[[str], Callable[[], Any]]]
"""Kind, name, dtype, layout, and what makes the call on a device."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
LAYOUTS = {2: {"last": torch.channels_last}, 3: {"last": torch.channels_last_3d}}

# images, channels before and after, sides, kernel, stride, padding, dilation, groups, transposed
CONVOLUTIONS = {
    # ResNet-50 and -18
    "stem 7x7": (32, 3, 64, (224, 224), (7, 7), 2, (3, 3), 1, 1, False),
    "3x3 64 at 56": (32, 64, 64, (56, 56), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 128 at 28": (32, 128, 128, (28, 28), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 256 at 14": (64, 256, 256, (14, 14), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 512 at 7": (64, 512, 512, (7, 7), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 128 stride 2": (32, 128, 128, (56, 56), (3, 3), 2, (1, 1), 1, 1, False),
    "1x1 64-256 at 56": (32, 64, 256, (56, 56), (1, 1), 1, (0, 0), 1, 1, False),
    "1x1 1024-256 at 14": (64, 1024, 256, (14, 14), (1, 1), 1, (0, 0), 1, 1, False),
    "1x1 512-1024 stride 2": (32, 512, 1024, (28, 28), (1, 1), 2, (0, 0), 1, 1, False),
    # U-Nets of diffusion and segmentation
    "3x3 320 at 64": (4, 320, 320, (64, 64), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 640 at 32": (4, 640, 640, (32, 32), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 1280-640 at 32": (4, 1280, 640, (32, 32), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 64 at 256": (8, 64, 64, (256, 256), (3, 3), 1, (1, 1), 1, 1, False),
    "3x3 dilated": (8, 256, 256, (65, 65), (3, 3), 1, (6, 6), 6, 1, False),
    "3x3 3-64 at 224": (32, 3, 64, (224, 224), (3, 3), 1, (1, 1), 1, 1, False),
    # groups and depths
    "3x3 groups 32": (32, 256, 256, (28, 28), (3, 3), 1, (1, 1), 1, 32, False),
    "3x3 depthwise 192 at 28": (64, 192, 192, (28, 28), (3, 3), 1, (1, 1), 1, 192, False),
    "5x5 depthwise 480 at 14": (64, 480, 480, (14, 14), (5, 5), 1, (2, 2), 1, 480, False),
    "3x3 depthwise stride 2": (64, 144, 144, (56, 56), (3, 3), 2, (1, 1), 1, 144, False),
    "7x7 depthwise 192 at 28": (64, 192, 192, (28, 28), (7, 7), 1, (3, 3), 1, 192, False),
    "patches 16": (64, 3, 768, (224, 224), (16, 16), 16, (0, 0), 1, 1, False),
    "patches 4": (64, 3, 96, (224, 224), (4, 4), 4, (0, 0), 1, 1, False),
    "2x2 stride 2": (64, 192, 384, (28, 28), (2, 2), 2, (0, 0), 1, 1, False),
    # transposed
    "transposed 4x4 512-256": (128, 512, 256, (8, 8), (4, 4), 2, (1, 1), 1, 1, True),
    "transposed 4x4 64-3": (128, 64, 3, (32, 32), (4, 4), 2, (1, 1), 1, 1, True),
    "transposed 2x2 128-64": (8, 128, 64, (64, 64), (2, 2), 2, (0, 0), 1, 1, True),
    # volumes and videos
    "3x3x3 1-32 at 96": (2, 1, 32, (96, 96, 96), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "3x3x3 32 at 96": (2, 32, 32, (96, 96, 96), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "3x3x3 64 at 48": (2, 64, 64, (48, 48, 48), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "3x3x3 128 at 24": (2, 128, 128, (24, 24, 24), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "3x3x3 256 at 12": (2, 256, 256, (12, 12, 12), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "3x3x3 64 stride 2": (2, 64, 128, (48, 48, 48), (3, 3, 3), 2, (1, 1, 1), 1, 1, False),
    "1x1x1 32-4 at 96": (2, 32, 4, (96, 96, 96), (1, 1, 1), 1, (0, 0, 0), 1, 1, False),
    "1x1x1 256-64": (8, 256, 64, (8, 28, 28), (1, 1, 1), 1, (0, 0, 0), 1, 1, False),
    "video stem": (8, 3, 64, (16, 112, 112), (3, 7, 7), (1, 2, 2), (1, 3, 3), 1, 1, False),
    "1x3x3 64 at 16x56": (8, 64, 64, (16, 56, 56), (1, 3, 3), 1, (0, 1, 1), 1, 1, False),
    "3x1x1 64 at 16x56": (8, 64, 64, (16, 56, 56), (3, 1, 1), 1, (1, 0, 0), 1, 1, False),
    "3x3x3 64 at 16x56": (8, 64, 64, (16, 56, 56), (3, 3, 3), 1, (1, 1, 1), 1, 1, False),
    "tubes": (8, 3, 768, (16, 224, 224), (2, 16, 16), (2, 16, 16), (0, 0, 0), 1, 1, False),
    "3x3x3 depthwise": (8, 96, 96, (8, 56, 56), (3, 3, 3), 1, (1, 1, 1), 1, 96, False),
    "transposed 2x2x2 64-32": (2, 64, 32, (48, 48, 48), (2, 2, 2), 2, (0, 0, 0), 1, 1, True),
    # sounds and sequences
    "1d 1-512 k10 s5": (16, 1, 512, (80000,), (10,), 5, (0,), 1, 1, False),
    "1d 512 k3 s2": (16, 512, 512, (8000,), (3,), 2, (0,), 1, 1, False),
    "1d 80-512 k3": (16, 80, 512, (3000,), (3,), 1, (1,), 1, 1, False),
    "1d 768 k128 g16": (16, 768, 768, (500,), (128,), 1, (64,), 1, 16, False),
    "1d 256 k3 dilated": (16, 256, 256, (4000,), (3,), 1, (8,), 8, 1, False),
    "1d depthwise k4": (8, 1536, 1536, (1024,), (4,), 1, (3,), 1, 1536, False),
}


def _convolution(shape: tuple, dtype: torch.dtype, layout: str, part: str) -> Callable[[str], Callable[[], Any]]:
    images, before, after, sides, kernel, stride, padding, dilation, groups, transposed = shape
    strides = stride if isinstance(stride, tuple) else (stride,) * len(sides)
    rest = (strides, padding, (dilation,) * len(sides), transposed, (0,) * len(sides), groups)

    def make(device: str) -> Callable[[], Any]:
        x = torch.randn(images, before, *sides, device=device).to(dtype)
        first, second = (before, after // groups) if transposed else (after, before // groups)
        weight = torch.randn(first, second, *kernel, device=device).to(dtype) * 0.05
        if layout == "last":
            memory = LAYOUTS[len(sides)]["last"]
            x, weight = x.to(memory_format=memory), weight.to(memory_format=memory)
        result = torch.ops.aten.convolution(x, weight, None, *rest)
        if part == "forward":
            return lambda: torch.ops.aten.convolution(x, weight, None, *rest)
        mask = [part == "image", part == "weights", False]
        gradient = torch.randn_like(result)
        return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, None, *rest, mask)

    return make


def convolutions() -> Iterator[Case]:
    """Each convolution, in three dtypes and two layouts, and its two gradients."""
    for (name, shape), dtype, layout, part in itertools.product(
        CONVOLUTIONS.items(), DTYPES, ("first", "last"), ("forward", "image", "weights")
    ):
        has_last = layout == "first" or len(shape[3]) > 1
        has_image = part != "image" or shape[1] > 3
        if has_last and has_image:
            yield "convolution", f"{name}, {part}", dtype, layout, _convolution(shape, DTYPES[dtype], layout, part)


def _random(dtype: torch.dtype, *shape: int) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.randn(*shape, device=device).to(dtype)


def _on(make: Callable[..., Any], *tensors: Callable[[str], torch.Tensor]) -> Callable[[str], Callable[[], Any]]:
    """The call of `make` on tensors made once."""

    def with_device(device: str) -> Callable[[], Any]:
        here = [tensor(device) for tensor in tensors]
        return lambda: make(*here)

    return with_device


def _ids(most: int, *shape: int) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.randint(0, most, shape, device=device)


def operators() -> Iterator[Case]:
    """What lies between products and convolutions in training steps: at a size of activations and at a small one."""
    aten = torch.ops.aten
    for (dtype, number), rows in itertools.product(DTYPES.items(), (2048, 16384)):
        if dtype == "fp16":
            continue
        x, y, wide = _random(number, rows, 2048), _random(number, rows, 2048), _random(number, rows, 8192)
        row, image = _random(number, 2048), _random(number, rows // 64, 64, 56, 56)
        heads, volume = _random(number, rows // 512, 16, 512, 512), _random(number, rows // 1024, 32, 48, 48, 48)
        ids, few = _ids(32000, rows), _ids(rows // 4, rows)
        everything: dict[str, Callable[[str], Callable[[], Any]]] = {
            "add": _on(torch.add, x, y), "mul row": _on(torch.mul, x, row), "gelu": _on(F.gelu, wide),
            "gelu backward": _on(lambda a, b: aten.gelu_backward(a, b), wide, wide),
            "silu backward": _on(lambda a, b: aten.silu_backward(a, b), wide, wide),
            "dropout": _on(lambda a: torch.native_dropout(a, 0.1, True), x),
            "softmax": _on(lambda a: torch.softmax(a, -1), heads),
            "softmax backward": _on(lambda a, b: aten._softmax_backward_data(a, b, -1, a.dtype), heads, heads),
            "log_softmax wide": _on(lambda a: torch.log_softmax(a, -1), _random(number, rows // 4, 32000)),
            "layer_norm": _on(lambda a, w: F.layer_norm(a, (2048,), w, w), x, row),
            "layer_norm backward": _layer_norm_backward(number, rows),
            "rms by hand": _on(lambda a: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6), x),
            "rms_norm": _on(lambda a, w: F.rms_norm(a, (2048,), w), x, row),
            "group_norm": _on(lambda a: F.group_norm(a, 32), image),
            "instance_norm 3d": _on(lambda a: F.instance_norm(a), volume),
            "batch_norm": _on(lambda a: F.batch_norm(a, None, None, training=True), image),
            "batch_norm 3d": _on(lambda a: F.batch_norm(a, None, None, training=True), volume),
            "max_pool": _on(lambda a: F.max_pool2d(a, 3, 2, 1), image),
            "max_pool 3d": _on(lambda a: F.max_pool3d(a, 2), volume),
            "avg_pool": _on(lambda a: F.adaptive_avg_pool2d(a, 1), image),
            "upsample nearest": _on(lambda a: F.interpolate(a, scale_factor=2.0, mode="nearest"), image),
            "upsample bilinear": _on(lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"), image),
            "pad reflect": _on(lambda a: F.pad(a, (1, 1, 1, 1), mode="reflect"), image),
            "transpose copy": _on(lambda a: a.view(-1, 64, 16, 128).transpose(1, 2).contiguous(), x),
            "matrix transposed copy": _on(lambda a: a.t().contiguous(), x),
            "cat": _on(lambda a, b: torch.cat([a, b], -1), x, y), "roll": _on(lambda a: torch.roll(a, 3, 0), x),
            "sum all": _on(torch.sum, x), "sum rows": _on(lambda a: a.sum(0), x), "mean columns": _on(lambda a: a.mean(-1), x),  # noqa: E501
            "norm": _on(lambda a: torch.linalg.vector_norm(a), x), "amax": _on(lambda a: a.amax(-1), x),
            "argmax": _on(lambda a: a.argmax(-1), x), "topk 8": _on(lambda a: a.topk(8, -1), _random(number, rows, 64)),
            "sort": _on(lambda a: a.sort(-1), x), "cumsum": _on(lambda a: a.cumsum(-1), x),
            "cast to fp32": _on(lambda a: a.float() + 0 if a.dtype == torch.float32 else a.float(), x),
            "cast to bf16": _on(lambda a: a.to(torch.bfloat16 if a.dtype == torch.float32 else torch.float16), x),
            "masked_fill": _on(lambda a, m: a.masked_fill(m > 0, 0.0), x, y), "where": _on(lambda a, b: torch.where(a > 0, a, b), x, y),  # noqa: E501
            "exp": _on(torch.exp, x), "tanh": _on(torch.tanh, x), "sin": _on(torch.sin, x), "pow 3": _on(lambda a: a.pow(3), x),  # noqa: E501
            "embedding": _on(lambda i, w: F.embedding(i, w), ids, _random(number, 32000, 2048)),
            "embedding backward": _on(lambda g, i: aten.embedding_dense_backward(g, i, 32000, -1, False), x, ids),
            "index rows": _on(lambda a, i: a[i], x, few), "index_select": _on(lambda a, i: a.index_select(0, i), x, few),
            "index_add": _on(lambda a, b, i: a.index_add(0, i, b), x, y, few),
            "scatter_add": _on(lambda a, b, i: a.scatter_add(0, i[:, None].expand(-1, 2048), b), x, y, few),
            "gather": _on(lambda a, i: a.gather(-1, i), x, _ids(2048, rows, 64)), "one_hot": _on(lambda i: F.one_hot(i, 1024), _ids(1000, rows)),  # noqa: E501
            "nll_loss": _on(lambda a, i: F.nll_loss(a, i), _random(torch.float32, rows, 8192), _ids(8192, rows)),
            "randn": lambda device, n=number, r=rows: lambda: torch.randn(r, 2048, device=device, dtype=n),
            "rand bernoulli": _on(lambda a: torch.bernoulli(torch.full_like(a, 0.1)), x),
            "zeros": lambda device, n=number, r=rows: lambda: torch.zeros(r, 2048, device=device, dtype=n),
            "nonzero free where": _on(lambda a: torch.nan_to_num(a), x), "flip": _on(lambda a: a.flip(-1), x),
            "index_put add": _on(lambda a, b, i: a.index_put((i,), b, accumulate=True), x, y, few),
            "bmm attention": _on(lambda a: a @ a.transpose(-1, -2), _random(number, rows // 512, 16, 512, 64)),
            "conv bias gradient": _on(lambda a: a.sum((0, 2, 3)), image), "clamp": _on(lambda a: a.clamp(-1, 1), x),
        }  # fmt: skip
        for name, make in everything.items():
            yield "operator", name, dtype, str(rows), make
    for name, rows in itertools.product(("adamw foreach", "adamw fused", "sgd foreach", "clip foreach"), (20, 200)):
        yield "operator", name, "fp32", f"{rows} x 1M", _optimizer(name, rows)


def _layer_norm_backward(number: torch.dtype, rows: int) -> Callable[[str], Callable[[], Any]]:
    def make(device: str) -> Callable[[], Any]:
        x, weight = torch.randn(rows, 2048, device=device).to(number), torch.ones(2048, device=device).to(number)
        result, mean, rstd = torch.native_layer_norm(x, (2048,), weight, weight, 1e-5)
        backward = torch.ops.aten.native_layer_norm_backward
        return lambda: backward(result, x, (2048,), mean, rstd, weight, weight, [True, True, True])

    return make


def _optimizer(name: str, rows: int) -> Callable[[str], Callable[[], Any]]:
    def make(device: str) -> Callable[[], Any]:
        weights = [torch.randn(1024, 1024, device=device, requires_grad=True) for _ in range(rows)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        if name.startswith("clip"):
            return lambda: torch.nn.utils.clip_grad_norm_(weights, 1e9, foreach=True)
        if name.startswith("sgd"):
            return torch.optim.SGD(weights, 1e-4, momentum=0.9, foreach=True).step
        return torch.optim.AdamW(weights, 1e-4, **{name.split()[1]: True}).step

    return make


def hosts() -> Iterator[Case]:
    """Small calls, whose cost is the host's: by kind, with and without a graph for backward."""

    def small(device: str, grad: bool = True) -> torch.Tensor:
        return torch.randn(64, 64, device=device, requires_grad=grad)

    def graded(call: Callable[..., Any], *shapes: Any) -> Callable[[str], Callable[[], Any]]:
        def make(device: str) -> Callable[[], Any]:
            x, y = small(device), small(device)
            return lambda: call(x, y)

        return make

    def ungraded(call: Callable[..., Any]) -> Callable[[str], Callable[[], Any]]:
        def make(device: str) -> Callable[[], Any]:
            x, y = small(device, False), small(device, False).abs() + 1
            return lambda: call(x, y)

        return make

    calls: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "mul scalar": lambda a, b: a * 2.0, "view": lambda a, b: a.view(4096),
        "transpose": lambda a, b: a.transpose(0, 1), "slice": lambda a, b: a[:32], "expand": lambda a, b: a[None].expand(4, -1, -1),
        "matmul": lambda a, b: a @ b, "linear": lambda a, b: F.linear(a, b), "softmax": lambda a, b: a.softmax(-1),
        "layer_norm": lambda a, b: F.layer_norm(a, (64,)), "gelu": lambda a, b: F.gelu(a), "cat": lambda a, b: torch.cat([a, b]),
        "dropout": lambda a, b: F.dropout(a, 0.1), "sum": lambda a, b: a.sum(), "mean last": lambda a, b: a.mean(-1), "to bf16": lambda a, b: a.bfloat16(),
        "pow": lambda a, b: a.pow(2), "rsqrt": lambda a, b: a.abs().rsqrt(), "index": lambda a, b: a[[0, 1]],
        "sdpa": lambda a, b: F.scaled_dot_product_attention(a.view(1, 1, 64, 64), b.view(1, 1, 64, 64), b.view(1, 1, 64, 64)),
        "conv2d": lambda a, b: F.conv2d(a.view(1, 4, 32, 32), b.view(-1)[:144].view(4, 4, 3, 3)), "batch_norm": lambda a, b: F.batch_norm(a, None, None, training=True),
        "contiguous copy": lambda a, b: a.t().contiguous(), "masked_fill": lambda a, b: a.masked_fill(b > 0, 0.0),
    }  # fmt: skip
    for name, call in calls.items():
        yield "host", f"{name}, no graph", "fp32", "", ungraded(call)
        yield "host", f"{name}, graph", "fp32", "", graded(call)
        yield "host", f"{name}, graph, backward", "fp32", "", graded(lambda a, b, c=call: _with_backward(c, a, b))

    def auto(call: Callable[..., Any]) -> Callable[..., Any]:
        def inside(a: Any, b: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                return [call(a, b) for _ in range(10)]

        return inside

    for name in ("linear", "layer_norm", "add"):
        yield "host", f"{name} x 10, autocast", "bf16", "", graded(auto(calls[name]))
    in_place: dict[str, Callable[..., Any]] = {
        "mul_": lambda a, b: a.mul_(1.0), "add_ alpha": lambda a, b: a.add_(b, alpha=0.0), "addcmul_": lambda a, b: a.addcmul_(b, b, value=0.0),
        "addcdiv_": lambda a, b: a.addcdiv_(b, b, value=0.0), "sqrt": lambda a, b: b.sqrt(), "lerp_": lambda a, b: a.lerp_(b, 0.0), "copy_": lambda a, b: a.copy_(b),
        "zero_": lambda a, b: a.zero_(), "norm": lambda a, b: torch.linalg.vector_norm(a), "uniform_": lambda a, b: a.uniform_(),
        "new zeros": lambda a, b: torch.zeros(64, 64, device=a.device), "randn": lambda a, b: torch.randn(64, 64, device=a.device),
        "randn on the host": lambda a, b: torch.randn(64, 64), "randn on the host, large": lambda a, b: torch.randn(1024, 1024),
        "randint on the host, large": lambda a, b: torch.randint(0, 1000, (1024, 1024)), "item": lambda a, b: a[0, 0].item(),
        "detach": lambda a, b: a.detach(), "empty_like": lambda a, b: torch.empty_like(a), "allclose free eq": lambda a, b: a == b,
        "foreach_mul_ 50": lambda a, b: torch._foreach_mul_([a] * 50, 1.0), "foreach_add_ 50": lambda a, b: torch._foreach_add_([a] * 50, [b] * 50),
    }  # fmt: skip
    for name, call in in_place.items():
        yield "host", name, "fp32", "", ungraded(lambda a, b, c=call: _without_graph(c, a, b))
    for name in (
        "to the card, pageable 1 MB",
        "to the card, pinned 1 MB",
        "module linear",
        "module norm",
        "checkpointed linear",
    ):
        yield "host", name, "fp32", "", _of_modules(name)


def _without_graph(call: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> Any:
    with torch.no_grad():
        return call(a, b)


def _with_backward(call: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> None:
    result = call(a, b)
    torch.autograd.grad(result, [a], torch.empty_like(result))


def _of_modules(name: str) -> Callable[[str], Callable[[], Any]]:
    def make(device: str) -> Callable[[], Any]:
        x = torch.randn(64, 64, device=device, requires_grad=True)
        if "card" in name:
            host = torch.randn(512, 512)
            host = host.pin_memory() if "pinned" in name else host
            return lambda: host.to(device, non_blocking=True)
        module = (torch.nn.LayerNorm(64) if "norm" in name else torch.nn.Linear(64, 64)).to(device)
        if "checkpointed" in name:
            from torch.utils.checkpoint import checkpoint

            return lambda: checkpoint(module, x, use_reentrant=False)
        return lambda: module(x)

    return make


def cases() -> list[Case]:
    """All, the kinds mixed; the same order each time."""
    everything = [*convolutions(), *operators()]
    random.Random(0).shuffle(everything)
    return [*hosts(), *everything]


def gpu_seconds(call: Callable[[], Any]) -> tuple[float, int]:
    """Seconds of one call on the GPU, and bytes of scratch of one."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    scratch = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    assert torch.cuda.memory_allocated() >= before - 1024
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    for _ in range(TURNS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / TURNS, scratch


def host_seconds(call: Callable[[], Any]) -> float:
    """Seconds of one call on the host."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = (time.perf_counter() - begin) / CALLS
    torch.cuda.synchronize()
    return spent


def main() -> None:
    """Measure and write, row by row."""
    begin, most = time.perf_counter(), float(sys.argv[2]) if len(sys.argv) > 2 else 120.0
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for kind, name, dtype, layout, make in cases():
            if time.perf_counter() - begin > most:
                print(f"stopped before {kind} {name}", file=sys.stderr)
                break
            row: dict[str, Any] = {"kind": kind, "name": name, "dtype": dtype, "layout": layout}
            try:
                call = make("cuda")
                if kind == "host":
                    row["seconds"] = host_seconds(call)
                else:
                    row["seconds"], row["scratch_bytes"] = gpu_seconds(call)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:200]
            writer.writerow(row | facts)
    print(f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
