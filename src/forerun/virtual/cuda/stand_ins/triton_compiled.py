"""Triton kernels in compiled code: PyTorch captures a launch as an operator on functions, and it is launched as always.

Each dispatch mode and key needs a rule of its own; those of the virtual device are here
(`torch/_higher_order_ops/triton_kernel_wrap.py`, 2.13). What a kernel writes PyTorch finds out by itself.
"""

import importlib
from typing import Any

from torch._C import DispatchKey

from forerun.virtual.cuda.dispatch import CudaDispatch
from forerun.virtual.cuda.names import CudaNames

OPERATORS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
KEYS = ("AutocastPrivateUse1", "AutogradPrivateUse1")


def register() -> None:
    """Give launches their rules; they concern our own device and mode only, so they stay."""
    wrap: Any = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    for name in OPERATORS:
        operator, launch = getattr(wrap, name), getattr(wrap, f"{name}_dense")
        if CudaDispatch in operator.python_key_table:
            continue
        for key in KEYS:
            operator.fallthrough(getattr(DispatchKey, key))
        operator.py_impl(CudaDispatch)(_launching(launch))


def _launching(launch: Any) -> Any:
    def rule(mode: CudaDispatch, **arguments: Any) -> Any:
        with mode, CudaNames():  # which is off within an operator on functions
            return launch(**arguments)

    return rule
