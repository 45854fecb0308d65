"""bitsandbytes in a program: quantised layers and paged optimizer state without values.

The library is there, but its parameters are subclasses of tensors, which fake tensors cannot become. While a program
runs, weights that it quantises become those of `step/quantization.py`, so a script and a settings file with the same
quantization have the same tensors and the same operators. Its optimizers run as they are; paged state (managed memory)
takes nothing from the allocator and is counted apart.

Source: `bitsandbytes/nn/modules.py`, `functional.py`, 0.50; transformers 5.23 quantises while it loads
(`integrations/bitsandbytes.py`).

Not covered: layers that the program itself builds on the host and then moves, embeddings, weights stored quantised.
"""

import contextlib
import importlib
import math
from collections.abc import Iterator
from importlib.machinery import PathFinder
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from forerun.step.quantization import Linear4bit, Linear8bit
from forerun.trace import Trace

_LAYER = "_forerun_layer"


def _parameter(layer: Linear4bit | Linear8bit, **attributes: Any) -> Tensor:
    """The packed weight of a stand-in, which stays alive with it."""
    weight: Any = layer.weight
    setattr(weight, _LAYER, layer)
    for name, value in attributes.items():
        setattr(weight, name, value)
    return weight


def _new_params_4bit(original: Any) -> Any:
    def new(cls: Any, data: Any = None, requires_grad: bool = False, quant_state: Any = None, **options: Any) -> Any:
        if not isinstance(data, FakeTensor) or data.dtype == torch.uint8:
            return original(cls, data, requires_grad, quant_state, **options)
        with torch.device("cuda"):
            layer = Linear4bit(
                data.shape[1], data.shape[0], None, torch.bfloat16, double=options.get("compress_statistics", True)
            )
        return _parameter(layer, **(options | {"quant_state": layer, "bnb_quantized": True}))

    return new


def _new_params_8bit(original: Any) -> Any:
    def new(
        cls: Any, data: Any = None, requires_grad: bool = True, has_fp16_weights: bool = False, **options: Any
    ) -> Any:
        if data is None or has_fp16_weights or data.device.type == "meta" or data.dtype == torch.int8:
            return original(cls, data, requires_grad, has_fp16_weights, **options)
        with torch.device("cuda"):
            layer = Linear8bit(data.shape[1], data.shape[0], None, torch.bfloat16)
        return _parameter(layer, CB=None, SCB=None, has_fp16_weights=False)

    return new


def _forward(original: Any) -> Any:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        layer = getattr(self.weight, _LAYER, None)
        if layer is None:
            return original(self, x)
        layer.bias = self.bias
        layer.compute_dtype = getattr(self, "compute_dtype", None) or x.dtype
        return layer(x)

    return forward


class _ManagedMemory:
    """State in managed memory: no tensor of the allocator holds it."""

    def __init__(self, trace: Trace):
        self._trace = trace

    def get_paged(self, *shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
        state = torch.empty(shape, dtype=dtype, device="meta")
        self._trace.paged_bytes += dtype.itemsize * math.prod(shape)
        state.is_paged, state.page_deviceid = True, 0  # type: ignore[attr-defined]
        return state

    def prefetch_tensor(self, tensor: Tensor, to_cpu: bool = False) -> None:
        """It is there when the kernel wants it."""

    def fill(self, tensor: Tensor, value: Any, device: Any = None, prefetch: bool = True) -> None:
        """There are no values."""


@contextlib.contextmanager
def quantizing_without_values(trace: Trace) -> Iterator[None]:
    """Let an installed bitsandbytes quantise weights and page optimizer state that have no values."""
    if PathFinder.find_spec("bitsandbytes") is None:
        yield
        return
    modules, functional = (importlib.import_module(f"bitsandbytes.{name}") for name in ("nn.modules", "functional"))
    memory = _ManagedMemory(trace)
    changes = [
        (modules.Params4bit, "__new__", _new_params_4bit(modules.Params4bit.__new__)),
        (modules.Int8Params, "__new__", _new_params_8bit(modules.Int8Params.__new__)),
        (modules.Linear4bit, "forward", _forward(modules.Linear4bit.forward)),
        (modules.Linear8bitLt, "forward", _forward(modules.Linear8bitLt.forward)),
        (functional, "get_paged", memory.get_paged),
        (functional, "prefetch_tensor", memory.prefetch_tensor),
        (functional, "fill", memory.fill),
    ]
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
