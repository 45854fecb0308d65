"""From a launch of a Triton kernel to its intermediate representation, by Triton's own front end.

The front end turns Python into MLIR for a compute capability that is stated; it needs no device and no driver, some
0.1 s for a kernel. Types of arguments are those that Triton would choose: 1 and `None` become constants.

Source: `triton/compiler/compiler.py` (`ASTSource`), `triton/runtime/jit.py` (`specialize_impl`), 3.4 to 3.9.
"""

import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from forerun.hardware.multiprocessors import WARP_THREADS

POINTERS = {
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.float32: "fp32", torch.float64: "fp64", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
    torch.float8_e4m3fnuz: "fp8e4b8", torch.float8_e5m2fnuz: "fp8e5b16",
}  # fmt: skip
"""Triton's names of what a pointer points to."""
CONSTANT = "constexpr"
SMALLEST_INT32, FIRST_UNSIGNED, FIRST_UINT64 = -(2**31), 2**31, 2**63


def type_of(value: Any, *, becomes_constant: bool) -> str:
    """Triton's type of an argument; with `becomes_constant` the number 1 is a constant, as `None` always is.

    Raises:
        TypeError: Triton has no type for it.
    """
    if isinstance(value, torch.Tensor):
        return f"*{POINTERS[value.dtype]}"
    if hasattr(value, "base") and isinstance(value.base, torch.Tensor):
        if hasattr(value, "block_shape"):
            return f"tensordesc<{POINTERS[value.base.dtype]}{list(value.block_shape)}>"
        return f"*{getattr(value.dtype, 'name', POINTERS.get(value.dtype, value.dtype))}"  # seen as another dtype
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        if value == 1 and becomes_constant:
            return CONSTANT
        if SMALLEST_INT32 <= value < FIRST_UNSIGNED:
            return "i32"
        return "u64" if value >= FIRST_UINT64 else "i64"
    if isinstance(value, float):
        return "fp32"
    if value is None or callable(value) or isinstance(value, str | torch.dtype):
        return CONSTANT
    raise TypeError(f"a Triton kernel cannot take a {type(value).__name__}")


def types_of(kernel: Any, values: Mapping[str, Any]) -> dict[str, str]:
    """Types of a kernel's arguments, in the order of its parameters."""
    types = {}
    for parameter in kernel.params:
        value, stated = values[parameter.name], getattr(parameter, "annotation_type", "")
        if parameter.is_constexpr or type(value).__name__ == CONSTANT:
            types[parameter.name] = CONSTANT
        elif stated and not isinstance(value, torch.Tensor) and value is not None:
            types[parameter.name] = str(stated)
        else:
            types[parameter.name] = type_of(value, becomes_constant=not parameter.do_not_specialize)
    return types


def lowered(name: str, value: Any) -> list[tuple[str, int | None]]:
    """What an argument is in the representation: itself, and behind a descriptor its shape and strides.

    Each is a name and its whole number, None where it is none.
    """
    if hasattr(value, "block_shape"):
        return [(name, None), *((f"{name}.{place}", int(n)) for place, n in enumerate((*value.shape, *value.strides)))]
    return [(name, value if isinstance(value, int) else None)]


def representation(
    kernel: Any, types: Mapping[str, str], values: Mapping[str, Any], capability: tuple[int, int]
) -> str:
    """Text of the representation, with every function of the kernel in its place.

    Raises:
        Exception: what Triton says of a kernel that it cannot compile.
    """
    compiler, targets, library = (
        importlib.import_module(f"triton.{name}") for name in ("compiler", "backends.compiler", "_C.libtriton")
    )
    target = targets.GPUTarget("cuda", 10 * capability[0] + capability[1], WARP_THREADS)
    backend = compiler.make_backend(target)
    constants = {name: values[name] for name, kind in types.items() if kind == CONSTANT}
    source = compiler.ASTSource(kernel, dict(types), constants)
    context = library.ir.context()
    library.ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({})
    answers = {
        "target": target, "options": options, "codegen_fns": backend.get_codegen_implementation(options),
        "module_map": backend.get_module_map(), "context": context,
    }  # fmt: skip
    parameters: Iterable[str] = inspect.signature(source.make_ir).parameters
    module = source.make_ir(**{name: answers[name] for name in parameters})
    passes = library.ir.pass_manager(module.context)
    for add in ("add_inliner", "add_canonicalizer", "add_cse"):
        getattr(library.passes.common, add)(passes)
    passes.run(module, "forerun") if _takes_name(passes.run) else passes.run(module)
    return module.str_nodebug() if hasattr(module, "str_nodebug") else str(module)


def refusals() -> tuple[type[BaseException], ...]:
    """What a kernel that cannot be lowered raises: Triton's own error, and those of arguments that it does not know."""
    triton: Any = sys.modules.get("triton.compiler.errors")
    own = () if triton is None else (triton.CompilationError,)
    return (*own, TypeError, ValueError, LookupError, AttributeError, ImportError, RuntimeError)


def _takes_name(run: Any) -> bool:
    """Whether a pass manager wants a name for what it runs, as from 3.5 on."""
    return "arg1" in (run.__doc__ or "") or "repro" in (run.__doc__ or "")
