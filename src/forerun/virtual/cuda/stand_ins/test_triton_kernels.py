"""Triton kernels: stand-ins, launches that Triton cannot lower, and Triton's search for a driver.

A package with Triton's two modules takes its place: the names and the behaviour that matter are those of
`triton/runtime/jit.py` and `driver.py`, 3.4. Launches of the real one are in tests/test_triton.py.
"""

import sys

import pytest
import torch

import forerun
from forerun.virtual.cuda.stand_ins.registry import stand_in

JIT = """
import inspect

class KernelInterface:
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)

class JITFunction(KernelInterface):
    def __init__(self, fn):
        self.fn, self.params, self.pre_run_hooks = fn, [], []
        self.signature = inspect.signature(fn)
    def run(self, *args, grid, warmup, **kwargs):
        from triton.runtime.driver import driver
        raise RuntimeError(f"compiles for {driver.active.get_current_target()}")

class Autotuner(KernelInterface):
    def __init__(self, fn):
        self.fn = fn
    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs)
"""
DRIVER = """
class DriverConfig:
    _active = None
    @property
    def active(self):
        if self._active is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self._active
    def set_active(self, driver):
        self._active = driver
    def reset_active(self):
        raise RuntimeError("0 active drivers ([]). There should only be one.")  # as 3.9 does where there is no GPU
driver = DriverConfig()
"""


@pytest.fixture
def triton(tmp_path, monkeypatch):
    runtime = tmp_path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("from triton.runtime.jit import JITFunction as jit, Autotuner\n")
    (runtime / "__init__.py").write_text("")
    (runtime / "jit.py").write_text(JIT)
    (runtime / "driver.py").write_text(DRIVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]


@pytest.mark.usefixtures("triton")
def test_the_driver_answers_for_the_virtual_card_while_the_program_runs():
    with forerun.virtual_cuda("l4"):
        from triton.runtime.driver import driver

        assert driver.active.get_current_target().arch == 89
    with pytest.raises(RuntimeError, match="0 active drivers"):
        _ = driver.active


@pytest.mark.usefixtures("triton")
def test_a_kernel_without_stand_in_is_named_with_the_lines_that_register_one():
    with forerun.virtual_cuda("l4"):
        import triton

        @triton.Autotuner
        @triton.jit
        def scale_rows(pointer, factor):
            pass

        x = torch.zeros(128, device="cuda")
        with pytest.raises(NotImplementedError, match=r'(?s)scale_rows.*@stand_in\("scale_rows"'):
            scale_rows[(1,)](x, 2.0)


@pytest.mark.usefixtures("triton")
def test_a_registered_kernel_is_one_operator_with_its_work():
    @stand_in("add_rows", flops=lambda out, a, b, n: n)
    def shapes(out, a, b, n):
        return out

    with forerun.virtual_cuda("l4") as gpu:
        import triton

        @triton.jit
        def add_rows(out, a, b, n):
            pass

        a, b, out = (torch.zeros(1024, device="cuda") for _ in range(3))
        add_rows[(8,)](out, a, b, 1024)
    calls = [call for call in gpu.trace.calls if call.name == "forerun.add_rows.default"]
    assert len(calls) == 1
    assert (calls[0].flops, calls[0].bytes_written) == (1024, 4096)
