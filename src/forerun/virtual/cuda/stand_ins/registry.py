"""Kernels of other packages as operators of the virtual GPU: one launch, the bytes it moves, the FLOP it does.

A stand-in computes shapes only. `stand_in` is how a program or a plug-in adds a kernel that is not here; `launch` is
what every stand-in issues. The operator's name is that of the kernel, so it appears in tables of operators by itself.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from forerun.trace import BYTES_READ, BYTES_WRITTEN, FACTORS
from forerun.virtual.describe import bytes_of

HOW_TO = """
    import torch
    from forerun.virtual.cuda.stand_ins.registry import stand_in

    @stand_in("{name}", flops=lambda x, *_: 2 * x.numel())
    def shapes(x, *_):                 # the kernel's arguments
        return torch.empty_like(x)     # shape and dtype of its result; for a Triton kernel that writes in place: None

    @shapes.gradient                   # where it has a backward pass: the gradients of its tensor arguments
    def gradients(arguments, upstream):
        return torch.empty_like(arguments[0])
"""
"""Ten lines that register a kernel; `name` is what the error names."""
STATED = f"int {BYTES_READ}, int {BYTES_WRITTEN}, str {FACTORS}"
"""Arguments that say what a kernel moves, rather than whole tensors."""
library = torch.library.Library("forerun", "FRAGMENT")
_KERNELS: dict[str, "StandInKernel"] = {}


def explain_missing(name: str) -> str:
    """Why a kernel cannot run on the virtual GPU, and the ten lines that change that."""
    return (
        f"{name}: a CUDA kernel that the virtual GPU does not know, so its memory and time would be missing from the "
        f"forecast. Register it before the program uses it:\n{HOW_TO.format(name=name)}"
    )


@functools.cache
def _operator(name: str) -> Any:
    """The operator of a kernel, made at its first launch."""
    plain = re.sub(r"\W+", "_", name)
    library.define(f"{plain}(Tensor(a!)[] writes, Tensor[] reads, int flops, *, {STATED}) -> ()")
    torch.library.register_fake(f"forerun::{plain}", _nothing, lib=library)
    packet = getattr(torch.ops.forerun, plain)
    register_flop_formula(packet, get_raw=True)(_flops)
    return packet


def _nothing(writes: list[Tensor], reads: list[Tensor], flops: int, **_: Any) -> None:
    """What the launch returns: results are written to tensors that exist."""


def _flops(writes: Any, reads: Any, flops: int, out_val: Any = None, **_: Any) -> int:
    return flops


def launch(
    name: str, writes: Sequence[Tensor], reads: Sequence[Tensor], flops: float = 0, *,
    traffic: tuple[int, int] | None = None, dtype: str = "",
) -> None:  # fmt: skip
    """One launch of a kernel that reads and writes these tensors; what it writes in place is among both.

    `traffic` is the bytes that it reads and writes where that is not all of them, `dtype` that of the factors of its
    products where that is not the one of its first floating tensor.
    """
    sources = [each for each in reads if isinstance(each, Tensor)]
    bytes_read, bytes_written = traffic or (sum(map(bytes_of, sources)), sum(map(bytes_of, writes)))
    stated = {BYTES_READ: bytes_read, BYTES_WRITTEN: bytes_written, FACTORS: dtype}
    with torch.no_grad():
        _operator(name)(list(writes), sources, round(flops), **stated)


class StandInKernel:
    """A kernel that a program registered; call it as the kernel is called."""

    def __init__(self, name: str, shapes: Callable[..., Any], flops: Callable[..., float]):
        self.name = name
        self._shapes, self._flops = shapes, flops
        self._gradients: Callable[..., Any] | None = None

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the gradients: `function(arguments, upstream)` returns those of the tensor arguments, in order."""
        self._gradients = function
        return function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's result, without values."""
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if not torch.is_grad_enabled() or not any(each.requires_grad for each in tensors):
            return self._run(args, kwargs)
        if self._gradients is None:
            raise NotImplementedError(
                f"{self.name}: its stand-in has no gradient, and an argument requires one. Add it:\n"
                f"{HOW_TO.format(name=self.name)}"
            )
        return _StandInFunction.apply(self, args, kwargs, *tensors)

    def _run(self, args: Any, kwargs: Any) -> Any:
        result = self._shapes(*args, **kwargs)
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        writes = [each for each in _as_tuple(result) if isinstance(each, Tensor)]
        # without a result, the kernel writes to its arguments, and nobody knows to which
        launch(self.name, writes or tensors, tensors, self._flops(*args, **kwargs))
        return result


class _StandInFunction(torch.autograd.Function):
    """Keeps the arguments until the backward pass, as most kernels do."""

    @staticmethod
    def forward(ctx: Any, kernel: StandInKernel, args: Any, kwargs: Any, *tensors: Tensor) -> Any:
        ctx.kernel, ctx.work = kernel, kernel._flops(*args, **kwargs)
        ctx.save_for_backward(*tensors)
        return kernel._run(args, kwargs)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        tensors = ctx.saved_tensors
        results = _as_tuple(ctx.kernel._gradients(tensors, *upstream))
        writes = [each for each in results if isinstance(each, Tensor)]
        reads = [each for each in (*tensors, *upstream) if isinstance(each, Tensor)]
        launch(f"{ctx.kernel.name}_backward", writes, reads, 2 * ctx.work)
        return None, None, None, *results, *(None,) * (len(tensors) - len(results))


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def stand_in(name: str, flops: Callable[..., float] = lambda *_, **__: 0) -> Callable[..., StandInKernel]:
    """Register a kernel by its name: `package.module.function`, or that of a Triton kernel's Python function.

    The decorated function gets the kernel's arguments and returns empty tensors with the shapes and dtypes of its
    results. `flops` gets the same arguments; the backward pass does twice as many.
    """

    def register(shapes: Callable[..., Any]) -> StandInKernel:
        kernel = StandInKernel(name, shapes, flops)
        _KERNELS[name] = kernel
        return kernel

    return register


def registered(name: str) -> StandInKernel | None:
    """The stand-in of that name; None where nobody registered one."""
    return _KERNELS.get(name)


def kernels_of_package(module: str) -> dict[str, StandInKernel]:
    """Stand-ins that programs registered for functions of a module, by function name."""
    return {name.rpartition(".")[2]: kernel for name, kernel in _KERNELS.items() if name.rpartition(".")[0] == module}
