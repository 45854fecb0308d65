"""Triton kernels of a program: each launch is one operator, with the bytes and FLOP that its own code says.

Triton asks for a driver as soon as CUDA is there, and would compile for it. While a program runs, an installed Triton
gets a driver that answers for the virtual card. Launching a kernel (`kernel[grid](...)`) goes to the stand-in of its
name where there is one; else what it loads, stores and multiplies is counted from Triton's intermediate representation
(`triton_work.py`). A kernel that Triton's front end refuses is an error that names it and shows how to register it.

Source: `triton/runtime/jit.py` (`KernelInterface.__getitem__`, `JITFunction.run`), `triton/runtime/autotuner.py`,
`triton/runtime/driver.py` (`DriverConfig`), 3.4 to 3.9. Of an autotuned kernel the first configuration is taken.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import Any

import torch

from forerun.hardware.catalogue import Device
from forerun.hardware.multiprocessors import REGISTERS, WARP_THREADS, shared_bytes_of_block
from forerun.units import KILO
from forerun.virtual.cuda.cards import this_card
from forerun.virtual.cuda.stand_ins import triton_compiled
from forerun.virtual.cuda.stand_ins.registry import explain_missing, launch, registered, stand_in
from forerun.virtual.cuda.stand_ins.triton_front_end import CONSTANT, lowered, refusals, representation, types_of
from forerun.virtual.cuda.stand_ins.triton_work import Work, count
from forerun.virtual.cuda.stand_ins.trl_kernels import KERNELS
from forerun.virtual.describe import bytes_of
from forerun.virtual.put_back import replaced

DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i8": "int8",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
}  # fmt: skip
"""PyTorch's names of what MLIR calls so."""


@stand_in("_fill_indices_kernel")
def _fill_indices(*_: Any, **__: Any) -> None:
    """Rows of each expert in order (`torchtitan/models/moe/kernels.py`, 0.2.2): writes whole numbers in place."""


class VirtualDriver:
    """What Triton asks of the device that is there."""

    def __init__(self, device: Device):
        self._capability, self._device = device.compute_capability or (0, 0), device
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def _properties(self, number: int = 0) -> dict[str, int]:
        """Of a card: bytes of shared memory, multiprocessors, clock in kHz, and more (`nvidia/driver.c`)."""
        return {
            "max_shared_mem": shared_bytes_of_block(self._capability), "max_num_regs": REGISTERS,
            "multiprocessor_count": self._device.sm_count or 1, "warpSize": WARP_THREADS,
            "sm_clock_rate": round(self._device.boost_clock_hertz / KILO),
        }  # fmt: skip

    def get_current_target(self) -> Any:
        """Backend, architecture and threads of a warp."""
        major, minor = self._capability
        return SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=WARP_THREADS)

    def get_current_device(self) -> int:
        """The first."""
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        """The default one."""
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Compute capability."""
        return self._capability

    def get_active_torch_device(self) -> torch.device:
        """The device that programs name."""
        return this_card()

    def get_device_interface(self) -> Any:
        """PyTorch's."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """Nothing takes time, so the first configuration of an autotuned kernel is as good as any."""
        return lambda function, **_: [0.0, 0.0, 0.0]


def kernel_name(kernel: Any) -> str:
    """Name of the Python function behind a kernel and its autotuner or heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__name__", type(kernel).__name__)


def _module_of(kernel: Any) -> str:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return getattr(kernel, "__module__", "")


def _launcher(kernel: Any, grid: Any) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        name = kernel_name(kernel)
        known_kernel = registered(name) or KERNELS.get(f"{_module_of(kernel)}.{name}")
        if known_kernel is None:
            return kernel.run(*args, grid=grid, warmup=False, **options)
        with torch.no_grad():
            return known_kernel(*args, **options)

    return run


class Launches:
    """Counts launches of kernels that nobody registered."""

    def __init__(self, capability: tuple[int, int], note: Callable[[str, Any], None]):
        self._capability, self._note = capability, note
        self._texts: dict[Any, str] = {}
        self._owners: list[Any] = []
        """Kernels and constants that keys name by their identity."""
        self._works: dict[Any, Work] = {}

    @torch._disable_dynamo  # type: ignore[attr-defined, misc]
    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> "CompiledKernel | None":
        """One launch, or a kernel to launch where Triton would only compile.

        Raises:
            NotImplementedError: Triton's front end refuses the kernel or an argument.
        """
        if warmup:
            self._note(f"registers of {kernel_name(kernel)}", CompiledKernel.n_regs)
            return CompiledKernel(self, kernel, options)
        for hook in kernel.pre_run_hooks:
            hook(*args, **options)
        names = {parameter.name for parameter in kernel.params}
        bound = kernel.signature.bind(*args, **{name: value for name, value in options.items() if name in names})
        bound.apply_defaults()
        values = dict(bound.arguments)
        stated: Any = grid(values) if callable(grid) else grid
        extents = tuple(int(extent) for extent in stated)
        tensors = {name: each for name, each in ((n, _tensor(v)) for n, v in values.items()) if each is not None}
        try:
            work = self._work(kernel, values, tensors, extents)
        except refusals() as error:
            name, cause = kernel_name(kernel), str(error).strip() or type(error).__name__
            raise NotImplementedError(
                f"{name}: Triton refuses this launch.\n{cause}\n{explain_missing(name)}"
            ) from error
        if work.depends_on_data:
            self._note(
                f"rounds and branches of {kernel_name(kernel)} that depend on data",
                "one pass over what they load, the larger",
            )
        if 0 not in extents:
            _record(kernel_name(kernel), work, tensors)
        return None

    def _work(
        self, kernel: Any, values: dict[str, Any], tensors: dict[str, torch.Tensor], extents: tuple[int, ...]
    ) -> Work:
        types = types_of(kernel, values)
        constants = {name: _comparable(values[name]) for name, kind in types.items() if kind == CONSTANT}
        compiled = (id(kernel), *types.items(), *constants.items())
        arguments = [each for name, kind in types.items() if kind != CONSTANT for each in lowered(name, values[name])]
        sizes = {name: bytes_of(tensor) for name, tensor in tensors.items()}
        alike = (compiled, extents, *arguments, *sizes.items())
        if alike not in self._works:
            if compiled not in self._texts:
                self._owners.append((kernel, [values[name] for name in constants]))
                self._texts[compiled] = representation(kernel, types, values, self._capability)
            self._works[alike] = count(self._texts[compiled], arguments, extents, sizes)
        return self._works[alike]


class CompiledKernel:
    """What `kernel.warmup(…)` returns: programs ask how much of a multiprocessor it takes, and launch it then."""

    n_regs, n_spills = 64, 0
    """Registers of a thread: some that a kernel may have; nothing compiles it."""

    def __init__(self, launches: Launches, kernel: Any, options: dict[str, Any]):
        self._launches, self._kernel = launches, kernel
        self.metadata = SimpleNamespace(**{"shared": 0, "num_warps": 4, "num_ctas": 1} | options)

    def _init_handles(self) -> None:
        """Triton loads it onto the device here."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **options: self._launches.run(self._kernel, *args, grid=grid, warmup=False, **options)


def _tensor(value: Any) -> torch.Tensor | None:
    """The tensor that an argument is or describes."""
    value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
    return value if isinstance(value, torch.Tensor) else None


def _comparable(value: Any) -> Any:
    """A constant by which launches are told apart: functions and dtypes by what they are."""
    value = getattr(value, "value", value)
    return value if isinstance(value, bool | int | float | str | type(None)) else f"{value!r} {id(value)}"


def _record(name: str, work: Work, tensors: dict[str, torch.Tensor]) -> None:
    reads = [tensors[each] for each in work.loads if each in tensors]
    writes = [tensors[each] for each in work.stores if each in tensors] or list(tensors.values())
    traffic = sum(work.loads.values()), sum(work.stores.values())
    launch(f"triton_{name}", writes, reads, work.flops, traffic=traffic, dtype=DTYPES.get(work.dtype, ""))


@contextlib.contextmanager
def virtual_triton(device: Device, note: Callable[[str, Any], None]) -> Iterator[None]:
    """Let an installed Triton find the virtual card, and count launches."""
    if PathFinder.find_spec("triton") is None:
        yield
        return
    jit, driver = (importlib.import_module(f"triton.runtime.{name}") for name in ("jit", "driver"))
    triton_compiled.register()
    card, config = VirtualDriver(device), driver.driver
    launches = Launches(card.get_device_capability(), note)
    before = dict(vars(config))
    config.set_active(card)
    try:
        with (
            replaced(jit.KernelInterface, "__getitem__", _launcher),
            replaced(jit.JITFunction, "run", lambda kernel, *args, **options: launches.run(kernel, *args, **options)),
        ):
            yield
    finally:
        # `reset_active` would look for a driver (triton/runtime/driver.py:46, 3.9), and there may be none here
        vars(config).clear()
        vars(config).update(before)
