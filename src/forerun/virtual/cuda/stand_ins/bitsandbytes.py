"""bitsandbytes in a program: quantised layers and paged optimizer state without values.

The library runs as it is: its parameters are of its own classes and have no values (`tensor_classes.py`), and it packs
them by its own functions, while weights are loaded or when the program moves a layer that it built. Its linear layers
then run the operators of `step/quantization.py`, so a script and a settings file with the same quantization have the
same tensors and the same operators. Its optimizers run as they are; paged state (managed memory) takes nothing from the
allocator and is counted apart.

Source: `bitsandbytes/nn/modules.py`, `functional.py`, 0.50; transformers 5.23 quantises while it loads
(`integrations/bitsandbytes.py`), Lightning 2.6 when a layer is made (`fabric/plugins/precision/bitsandbytes.py`).

Not covered: embeddings, weights in 16 bits that are trained and multiplied in 8.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from forerun.noise import quiet
from forerun.step.quantization import Linear4bit, Linear8bit
from forerun.trace import Trace
from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.stand_ins.registry import explain_missing, launch
from forerun.virtual.put_back import replaced

_LAYER = "_forerun_layer"
"""Name under which a module keeps its stand-in; no attribute of `nn.Module`, which would count its tensors twice."""
COUNT_DEVICES: Any = getattr(torch._C, "_cuda_getDeviceCount", None)
"""PyTorch's own, before a virtual GPU answers for it; missing in a build without CUDA."""


def _layer_4bit(weight: Any) -> Linear4bit:
    """The stand-in of a packed weight: its own tensors, and the operators of `step/quantization.py`."""
    state = weight.quant_state
    outer = (state.state2.absmax, state.state2.code, state.offset) if state.nested else None
    return Linear4bit.of(weight.detach(), state.shape, state.absmax, state.code, outer)


def _forward_4bit(original: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight: Any = self.weight
        if not isinstance(self.weight, FakeTensor):
            return original(self, x)
        if getattr(weight, "quant_state", None) is None:
            weight.quant_state = self.quant_state
        layer = self.__dict__.get(_LAYER)
        if layer is None or layer.weight.untyped_storage() is not weight.untyped_storage():
            layer = self.__dict__[_LAYER] = _layer_4bit(weight)
        layer.bias = self.bias
        layer.compute_dtype = self.compute_dtype or x.dtype
        return layer(x)

    return forward


def _forward_8bit(original: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight: Any = self.weight
        if not isinstance(self.weight, FakeTensor) or weight.requires_grad:
            return original(self, x)
        if weight.dtype != torch.int8:  # kept in 16 bits, and quantised in each forward pass
            quantize = importlib.import_module("bitsandbytes.functional").int8_vectorwise_quant
            layer = Linear8bit.of(*quantize(weight.detach().to(torch.float16))[:2])
            layer.bias = self.bias
            return layer(x)
        if weight.CB is not None:
            self.init_8bit_state()
        layer = self.__dict__.get(_LAYER)
        if layer is None or layer.weight.untyped_storage() is not weight.untyped_storage():
            layer = self.__dict__[_LAYER] = Linear8bit.of(weight.detach(), self.state.SCB)
        layer.bias = self.bias
        return layer(x)

    return forward


class NativeLibrary:
    """The library's CUDA functions, which some programs call by pointers (unsloth's and axolotl's LoRA kernels).

    A pointer is the tensor itself here (`pointer`). Those that unpack blocks are known; any other is an error by name.
    """

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NativeFunction(name)

    def __getitem__(self, name: str) -> Any:
        return NativeFunction(name)


class NativeFunction:
    """One of its functions, as `ctypes` would hand it out."""

    restype = argtypes = None

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *args: Any) -> None:
        """Unpack `(code, packed, scales, result, …)`, one launch."""
        if not self._name.startswith("cdequantize_blockwise_"):
            raise NotImplementedError(explain_missing(self._name))
        tensors = [value if isinstance(value, Tensor) else None for value in args[:4]]
        if tensors[3] is not None:
            launch(self._name, [tensors[3]], [value for value in tensors[:3] if value is not None])


def pointer(tensor: Tensor | None) -> Tensor | None:
    """What `functional.get_ptr` answers: the tensor, as it has no address."""
    return tensor


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
    """Let bitsandbytes quantise weights and page optimizer state that have no values, once the program imports it."""

    def change(library: ModuleType) -> Callable[[], None]:
        stack = contextlib.ExitStack()
        for owner, name, value in _changes(_ManagedMemory(trace)):
            stack.enter_context(replaced(owner, name, value))
        return stack.close

    with after_import("bitsandbytes", change, _as_the_machine_is):
        yield


def _changes(memory: _ManagedMemory) -> list[tuple[Any, str, Any]]:
    modules, functional = (importlib.import_module(f"bitsandbytes.{name}") for name in ("nn.modules", "functional"))
    return [
        (modules.Linear4bit, "forward", _forward_4bit(modules.Linear4bit.forward)),
        (modules.Linear8bitLt, "forward", _forward_8bit(modules.Linear8bitLt.forward)),
        (functional, "get_paged", memory.get_paged),
        (functional, "prefetch_tensor", memory.prefetch_tensor),
        (functional, "fill", memory.fill),
        (functional, "lib", NativeLibrary()),
        (functional, "get_ptr", pointer),
        (functional, "name2qmap", dict(functional.name2qmap)),  # code books without values stay here
    ]


@contextlib.contextmanager
def _as_the_machine_is() -> Iterator[None]:
    """It loads its CUDA library where a card is there: a real one, for whoever trains in this process afterwards."""
    with quiet(), replaced(torch.cuda, "is_available", lambda: COUNT_DEVICES is not None and COUNT_DEVICES() > 0):
        yield
