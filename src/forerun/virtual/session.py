"""A virtual device in use: fake tensors on it, its attention and autocast rules in force, everything recorded."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.modules.module as torch_modules
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from forerun.hardware.catalogue import Device
from forerun.step.attention import PACKAGES
from forerun.trace import Phase
from forerun.virtual import autocast
from forerun.virtual.attention import AttentionTarget, attend, set_target
from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.stand_ins.flash_attn import flash_in_transformers
from forerun.virtual.hugging_face import as_if_real
from forerun.virtual.placement import moving_fake_modules
from forerun.virtual.recorder import Recorder
from forerun.virtual.registration import register

_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


class VirtualSession:
    """What is active while a program runs on the virtual twin of `device`.

    The twin of a GPU is the torch device `virtual`; the twin of the CPU is fake tensors labelled `cpu`, so that
    PyTorch's own CPU rules apply.
    """

    def __init__(self, device: Device, attention: str = "auto", *, is_compiled: bool = False):
        register()
        self.torch_device = torch.device(DEVICE if device.kind == "cuda" else "cpu")
        self.recorder = Recorder(self.torch_device.type)
        self._target = AttentionTarget(
            device.kind, device.attention_capability, attention, self.recorder.trace.math_attention,
            device,
        )  # fmt: skip
        self._is_compiled = is_compiled
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "VirtualSession":
        before = set_target(self._target)
        self._stack.callback(set_target, before)
        self._stack.enter_context(_quiet_fake_tensors())
        self._stack.enter_context(_copying_tensors_alone())
        # torch/csrc/autograd/engine.cpp, start_device_threads: threads are made once, at the process's first backward
        # pass, for the devices known then; ours may come later
        self._stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._stack.enter_context(_clearing_autocast_cache())
        if self.torch_device.type == "cpu":
            self._stack.enter_context(_CpuAttention())
        else:
            self._stack.enter_context(_speaking_for_cuda())
        self._stack.enter_context(moving_fake_modules())
        self._stack.enter_context(as_if_real(self.recorder))
        if self._target.forced in PACKAGES:
            self._stack.enter_context(flash_in_transformers(self._target.forced))
        if not self._is_compiled:  # captured graphs know their modules, and hooks would be captured with them
            self._stack.enter_context(_following_modules(self.recorder))
        self._stack.enter_context(_seeing_resizes(self.recorder))
        self._stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        self._stack.enter_context(self.recorder)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def name_modules(self, model: nn.Module) -> None:
        """Label recorded operators with the module names of `model`."""
        self.recorder.module_names.update({id(module): name for name, module in model.named_modules()})


class _CpuAttention(TorchFunctionMode):
    """Sends attention on fake CPU tensors through the rules of the CPU's dispatcher, which fake tensors bypass."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _in_autocast_dtype(attend)(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _in_autocast_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cast floating tensors as CPU autocast does for attention."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        dtype = torch.get_autocast_dtype("cpu")

        def cast(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):  # what attention does inside is not cast again
            return function(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return call


@contextlib.contextmanager
def _quiet_fake_tensors() -> Iterator[None]:
    """Fake tensors log a traceback for every op that fails; the error itself says enough."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _copying_tensors_alone() -> Iterator[None]:
    """A copy of a fake tensor is of the same mode.

    `Tensor.__deepcopy__` copies its attributes too, and the mode is one: the copied mode would hold weak references to
    storages that it never took, and free them a second time (torch/multiprocessing/reductions.py, `StorageWeakRef`).
    """

    def same(mode: FakeTensorMode, memo: Any) -> FakeTensorMode:
        return mode

    if hasattr(FakeTensorMode, "__deepcopy__"):  # a session within another
        yield
        return
    FakeTensorMode.__deepcopy__ = same  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del FakeTensorMode.__deepcopy__  # type: ignore[attr-defined]


@contextlib.contextmanager
def _clearing_autocast_cache() -> Iterator[None]:
    """PyTorch clears its autocast cache when the outermost context ends; ours must go at the same moment."""
    # torch/amp/autocast_mode.py:349 (2.13) looks the function up in `torch` at each exit, so replacing it there works
    original = torch.clear_autocast_cache

    def clear() -> None:
        original()
        autocast.clear_cache()

    torch.clear_autocast_cache = clear
    try:
        yield
    finally:
        torch.clear_autocast_cache = original
        autocast.clear_cache()


@contextlib.contextmanager
def _speaking_for_cuda() -> Iterator[None]:
    """Programs ask whether autocast is on without naming a device, or for CUDA; they mean the device they run on."""
    enabled, dtype, cuda_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype, torch.get_autocast_gpu_dtype
    enable, set_dtype = torch.set_autocast_enabled, torch.set_autocast_dtype

    def twin(device_type: str) -> str:
        return DEVICE if device_type == "cuda" else device_type

    torch.is_autocast_enabled = lambda device_type="cuda": enabled(twin(device_type))
    torch.get_autocast_dtype = lambda device_type: dtype(twin(device_type))
    torch.get_autocast_gpu_dtype = lambda: dtype(DEVICE)
    # what is read of one is put back into the same: Dynamo does both for "cuda" (PyTorch 2.11)
    torch.set_autocast_enabled = lambda first, *rest: enable(twin(first), *rest) if rest else enable(DEVICE, first)
    torch.set_autocast_dtype = lambda device_type, value: set_dtype(twin(device_type), value)
    try:
        yield
    finally:
        torch.is_autocast_enabled, torch.get_autocast_dtype = enabled, dtype
        torch.get_autocast_gpu_dtype = cuda_dtype
        torch.set_autocast_enabled, torch.set_autocast_dtype = enable, set_dtype


@contextlib.contextmanager
def _seeing_resizes(recorder: Recorder) -> Iterator[None]:
    """Storages that change their size in place do so without an operator."""
    # torch/distributed/fsdp/_fully_shard/_fsdp_param.py:1066-1074 (2.13): alloc_storage, free_storage
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        recorder.resized(storage)
        return result

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _following_modules(recorder: Recorder) -> Iterator[None]:
    """Keep the recorder's module path up to date; a forward call in the backward phase is recomputation."""
    paths: list[tuple[str, bool]] = []

    def enter(module: nn.Module, args: Any) -> None:
        paths.append((recorder.module_path, recorder.recomputing))
        recorder.module_path = recorder.module_names.get(id(module), recorder.module_path)
        recorder.recomputing = recorder.recomputing or recorder.current_phase is Phase.BACKWARD

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if paths:
            recorder.module_path, recorder.recomputing = paths.pop()

    handles = (
        torch_modules.register_module_forward_pre_hook(enter),
        torch_modules.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
