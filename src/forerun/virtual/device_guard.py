"""What PyTorch's C++ code asks the device for its type, also while an error of Python is on its way through it.

Where a hook of a backward pass fails, the engine leaves the hook's error set while it unwinds; on its way back it asks
the guard of a device made in Python for its type, in a function of C++ that may not fail. A call that returns with an
error set is an error of its own, and the process ends. So the guard takes the error off, and it is raised again when
the backward pass has ended. CUDA's own guard is not made in Python.

Source: torch/csrc/acc/Module.cpp (`PythonDeviceGuard::exchangeStream`), torch/csrc/autograd/python_hook.cpp (2.13);
CPython's Objects/call.c (`_Py_CheckFunctionResult`, 3.11).
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

_KIND = torch._C._autograd.DeviceType.PrivateUse1  # type: ignore[attr-defined]
_LOST: list[BaseException] = []
"""The error that was taken off last."""


def device_guard() -> Any:
    """The guard of the virtual device; it is registered once and stays."""
    take, normalize, error = ctypes.pythonapi.PyErr_Fetch, ctypes.pythonapi.PyErr_NormalizeException, _Error()
    kind, parts = _KIND, [ctypes.byref(part) for part in error.parts]
    error_type, value, trace = parts

    class DeviceGuard(torch._C._acc.DeviceGuard):  # type: ignore[name-defined]
        def type_(self) -> Any:
            """Type of the device. The first line runs while an error may be set: it may not look up global names."""
            take(error_type, value, trace)
            if error.parts[0].value is not None:
                normalize(error_type, value, trace)
                _LOST[:] = [error.exception()]
            return kind

    return DeviceGuard()


class _Error:
    """Type, value and trace of an error, as CPython's C functions exchange them."""

    def __init__(self):
        self.parts = [ctypes.c_void_p() for _ in range(3)]

    def exception(self) -> BaseException:
        """The exception with its trace; the references that were taken over are handed on."""
        objects: list[Any] = [part.value and ctypes.cast(part, ctypes.py_object).value for part in self.parts]
        for part in self.parts:
            if part.value is not None:
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(ctypes.cast(part, ctypes.py_object).value))
        return objects[1].with_traceback(objects[2])


@contextlib.contextmanager
def raising_lost_errors() -> Iterator[None]:
    """Backward passes raise the errors that were taken off, where PyTorch has none to raise."""
    engine: Any = torch.autograd
    original = engine._engine_run_backward  # of torch/autograd/graph.py (2.13)

    def run(*args: Any, **kwargs: Any) -> Any:
        _LOST.clear()
        try:
            return original(*args, **kwargs)
        except SystemError:  # "returned NULL without setting an exception"
            if _LOST:
                raise _LOST.pop() from None
            raise

    engine._engine_run_backward = run
    try:
        yield
    finally:
        engine._engine_run_backward = original
