"""Traces of the measured steps: timm's benchmark script, on the virtual GPU.

The step is that of timm's `benchmark.py` with PyTorch 1.12: fp16 autocast around forward, loss and backward, no loss
scaler, SGD with Nesterov momentum that updates one parameter at a time, gradients that stay allocated (zeroed between
the timed parts). Fused attention is off: PyTorch 1.12 had none. Traces are cached in `CACHE`, one file each.
"""

import dataclasses
import gzip
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.vision.split import VisionRow
from torch import nn

from forerun.clock.convolutions import shape_of
from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import device
from forerun.models.library_import import import_library
from forerun.trace import Trace

CACHE = Path(os.environ.get("VISION_TRACES", Path(tempfile.gettempdir()) / "forerun-vision-traces"))
GPU = "rtx-3090"
CUDA = "11.3"
"""What the measured PyTorch was built for."""
CLASSES = 1000
DEPTHWISE_SHARE, ATTENTION_SHARE, CONVOLUTION_SHARE = 0.01, 0.02, 0.5
"""Of a step's FLOP: above them it counts as depthwise, as with attention, as convolutional."""


def trace_of(row: VisionRow, micro_batch_size: int) -> Trace:
    """The trace of a row's step at a batch size, from the cache where it is there."""
    build = program(row, micro_batch_size)
    return kept_trace(f"{row.id}-{micro_batch_size}", lambda: trace_program(build, device(GPU)))


def kept_trace(name: str, make: Callable[[], Trace]) -> Trace:
    """The trace of that name in the cache, made where it is not there."""
    path = CACHE / f"{name}.pickle.gz"
    if not path.exists():
        trace = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with gzip.open(unfinished, "wb", compresslevel=4) as file:
            pickle.dump(trace, file)
        unfinished.rename(path)
        return trace
    with gzip.open(path, "rb") as file:
        trace = pickle.load(file)  # noqa: S301 (written by this module)
    for each in dataclasses.fields(Trace):  # what was added since it was written is as it was then
        if not hasattr(trace, each.name) and each.default is not dataclasses.MISSING:
            setattr(trace, each.name, each.default)
    return trace


def program(row: VisionRow, micro_batch_size: int) -> Callable[[], tuple[nn.Module, Callable[[], object]]]:
    """Model and step of a row, as `forecast_step` takes them."""

    def build() -> tuple[nn.Module, Callable[[], object]]:
        model = create(row)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
        images = torch.randn(micro_batch_size, 3, row.image_size, row.image_size)
        if row.layout == "nhwc":
            images = images.contiguous(memory_format=torch.channels_last)
        kind = images.device.type

        def step() -> None:
            with torch.autocast(kind, dtype=torch.float16):
                output = model(images)
                output = output[0] if isinstance(output, tuple) else output
                labels = torch.randint(CLASSES, (micro_batch_size,), device=kind)
                nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()

        return model, step

    return build


def create(row: VisionRow) -> nn.Module:
    """The row's model in training mode, on the device that is the default."""
    timm = import_library("timm")
    timm.layers.set_fused_attn(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = {"img_size": row.image_size} if _takes_size(row) else {}
        model = timm.create_model(row.model, **sizes)
    layout = torch.channels_last if row.layout == "nhwc" else torch.contiguous_format
    return model.train().to(memory_format=layout)


def _takes_size(row: VisionRow) -> bool:
    """Whether the model is built for an image size that is not its default."""
    config = import_library("timm").get_pretrained_cfg(row.model)
    return bool(config and config.fixed_input_size and config.input_size[-1] != row.image_size)


def kind_of(trace: Trace) -> str:
    """convolutions, depthwise, transformer or mixed: by where the FLOP of the step are."""
    flops = {"all": 1, "convolution": 0, "depthwise": 0, "attention": 0}
    for op in trace.ops:
        call = trace.calls[op.call]
        flops["all"] += call.flops
        if "convolution" in call.name:
            flops["depthwise" if shape_of(call).is_depthwise else "convolution"] += call.flops
        if "bmm" in call.name or "attention" in call.name:
            flops["attention"] += call.flops
    share = {name: count / flops["all"] for name, count in flops.items()}
    is_convolutional = share["convolution"] + share["depthwise"] > CONVOLUTION_SHARE
    if share["attention"] > ATTENTION_SHARE:
        return "mixed" if is_convolutional else "transformer"
    if not is_convolutional:
        return "mixed"
    return "depthwise" if share["depthwise"] > DEPTHWISE_SHARE else "convolutions"
