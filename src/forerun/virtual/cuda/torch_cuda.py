"""What `torch.cuda` and `torch.accelerator` answer: the catalogue's row of the card, and its live allocator.

Replaced while a program runs and put back afterwards. What is not listed here keeps PyTorch's own answer, which on a
build without CUDA is an error that names the function.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.autograd.profiler
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types as foreach_types_of_optimizers
from torch.utils import _foreach_utils

from forerun.hardware.catalogue import Device
from forerun.hardware.multiprocessors import REGISTERS, RESERVED_BYTES, WARP_THREADS, shared_bytes_of_block, threads
from forerun.trace import EMPTY_CACHE, Call, Trace
from forerun.units import KIB, KILO, MILLI
from forerun.virtual.backend import DEVICE, VirtualBackend
from forerun.virtual.backend import Stream as VirtualStream
from forerun.virtual.card import Card
from forerun.virtual.cuda.cards import choose, number_of, this_card
from forerun.virtual.cuda.cuda_graphs import graph_answers, is_capturing
from forerun.virtual.cuda.driver_answers import Note, library_answers, markers, nothing, runtime, sensor_answers
from forerun.virtual.cuda.generators import CudaGenerator
from forerun.virtual.cuda.names import to_virtual
from forerun.virtual.cuda.old_types import old_types
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder

AMPERE = 8
RANDOM_STATE = frozenset(torch.cuda.random.__all__)
CUDA_VERSION = "12.8"
SHARED_BYTES = 48 * KIB
"""Of a block of threads that asks for no more, on every GPU (CUDA C++ Programming Guide 13)."""


class LiveCard(Card, Protocol):
    """Memory of a card that a program can ask about; bytes."""

    largest_at_failure: list[int]

    def at(self, number: int) -> "LiveCard":
        """The card of that number where a process drives several; else itself."""
        ...

    @property
    def allocator_conf(self) -> str:
        """How its allocator is set, as `PYTORCH_ALLOC_CONF` has it."""
        ...

    def configure(self, conf: str) -> None:
        """Set its allocator for what comes from now on."""
        ...

    @property
    def fraction(self) -> float:
        """Share of the card that the process takes at most."""
        ...

    def limit(self, share: float) -> None:
        """Let the process take so much of it."""
        ...

    @property
    def allocated_bytes(self) -> int:
        """In use."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """Taken from the driver."""
        ...

    @property
    def peak_allocated_bytes(self) -> int:
        """The most in use."""
        ...

    @property
    def peak_reserved_bytes(self) -> int:
        """The most taken from the driver."""
        ...

    @property
    def free_bytes(self) -> int:
        """What the driver can still give."""
        ...

    def empty_cache(self) -> None:
        """Give unused segments back."""
        ...

    def reset_peaks(self) -> None:
        """Look for peaks from now on."""
        ...


class CudaEvent:
    """A moment of the virtual device's clock."""

    clock: Callable[[Trace, int, int], float] | None = None
    """Seconds from one event of the trace to another."""
    recorder: Recorder | None = None

    def __init__(self, *_: object, **__: object):
        self.place = 0

    def record(self, stream: object = None) -> None:
        """Note where the program is."""
        self.place = 0 if self.recorder is None else len(self.recorder.trace.events)

    def elapsed_time(self, end: "CudaEvent") -> float:
        """Milliseconds from here to `end`."""
        ask, recorder = CudaEvent.clock, self.recorder
        return 0.0 if ask is None or recorder is None else ask(recorder.trace, self.place, end.place) / MILLI

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It has passed."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CudaStream(VirtualStream):
    """An order of work, also as a context; its priority changes nothing here."""

    cuda_stream = 0

    def __init__(self, device: object = None, priority: int = 0, **options: Any):
        super().__init__(device, **options)
        self._device, self.priority = device, priority

    @property
    def device(self) -> torch.device:
        """The card that it was made for, or the present one."""
        card = torch.cuda.current_device() if self._device is None else self._device
        return torch.device("cuda", card) if isinstance(card, int) else torch.device(card)  # type: ignore[arg-type]

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return is_capturing()


class _Using:
    """`torch.cuda.stream(s)`, `torch.cuda.device(0)` and the like."""

    def __init__(self, stream: object = None, device: object = None):
        self._device, self._before = stream if device is None else device, 0
        self.idx = self._device if isinstance(self._device, int) else number_of(self._device)
        self._context = (
            VirtualBackend.stream(torch.virtual, stream)  # type: ignore[attr-defined]
            if isinstance(stream, VirtualStream)
            else contextlib.nullcontext()
        )

    def __enter__(self) -> None:
        self._before = choose(self._device)
        self._context.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)  # type: ignore[arg-type]
        choose(self._before)


class DeviceProperties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` returns."""

    def __repr__(self) -> str:
        return f"_CudaDeviceProperties(name='{self.name}', total_memory={self.total_memory // 2**20}MB)"


@contextlib.contextmanager
def answering(device: Device, recorder: Recorder, card: LiveCard, note: Note, ranks: int = 1) -> Iterator[None]:
    """Let PyTorch's CUDA interface answer for `device`; `ranks` cards are in the machine."""
    sensors, graphs = sensor_answers(device, card, note), graph_answers(recorder)
    memory = _memory_answers(card, device.memory_bytes) | {"empty_cache": _emptying(card, recorder)}
    with contextlib.ExitStack() as stack:
        for target, answers in (
            (torch.cuda, _device_answers(device, ranks) | memory | old_types() | sensors | graphs),
            (torch.cuda.memory, memory | {"is_initialized": lambda: True, "_lazy_init": nothing}),
            (torch.cuda.graphs, graphs),
            (torch.cuda.graphs.graph, {"default_capture_stream": None}),
            (torch.cuda.nvtx, {"_nvtx": markers()}),
            (torch.cuda.profiler, {"cudart": runtime, "check_error": nothing}),
            (torch.distributed, {"is_nccl_available": lambda: True}),
            (torch._C, library_answers(card)),
            (torch.cuda.random, {n: v for n, v in _device_answers(device, ranks).items() if n in RANDOM_STATE}),
            (torch.accelerator, _accelerator_answers(device, card, ranks) | {"empty_cache": memory["empty_cache"]}),
            (torch.version, {"cuda": torch.version.cuda or CUDA_VERSION}),  # others compare theirs with it
            (torch, {"Generator": CudaGenerator}),
            (
                torch._C,
                {
                    "_cuda_getCurrentRawStream": lambda *_, **__: 0,
                    "_cuda_getDeviceCount": lambda: ranks,
                    "_get_accelerator": lambda: torch.device("cuda"),  # FSDP moves parameters there
                    "_cuda_CUDAAllocator_AllocatorState": object,  # imported by torch/_inductor/cudagraph_trees.py:117
                    # inference tensors would pass by the autograd key, where attention is routed and products are split
                    "_InferenceMode": _GradInstead,
                },
            ),
            (torch.Tensor, {"record_stream": nothing, "data_ptr": _address}),
            (torch.UntypedStorage, {"data_ptr": _storage_address}),
            (torch.backends.cuda, {"is_built": lambda: True}),
            (torch.backends.cudnn, {"is_available": lambda: True, "version": lambda: 90_800}),
        ):
            for name, answer in answers.items():
                stack.enter_context(replaced(target, name, answer))
        stack.enter_context(replaced(torch.autocast, "__init__", _autocast_init(torch.autocast.__init__)))
        profile = torch.autograd.profiler.profile
        stack.enter_context(replaced(profile, "__init__", _profile_init(profile.__init__)))
        stack.enter_context(_foreach_of_fake_tensors())
        yield


@contextlib.contextmanager
def _foreach_of_fake_tensors() -> Iterator[None]:
    """Optimizers and gradient norms take their foreach path, as on the card, for types that they list (2.13).

    The lists themselves are changed: `torch.distributed.tensor` adds DTensor to them when it is imported.
    """
    lists: tuple[list[Any], ...] = (foreach_types_of_optimizers, _foreach_utils._foreach_supported_types)
    for types in lists:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


def _autocast_init(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, DEVICE if str(device_type).split(":")[0] == "cuda" else device_type, *args, **kwargs)

    return init


def _profile_init(original: Callable[..., None]) -> Callable[..., None]:
    """PyTorch's profiler looks at the host alone: no kernel runs, and events of the device would not record."""
    on_host = {"use_cuda": False, "use_device": None, "use_cpu": True, "with_stack": False, "with_modules": False}

    def init(self: Any, enabled: bool = True, **options: Any) -> None:
        original(self, enabled, **options | on_host)

    return init


def _address(tensor: torch.Tensor) -> int:
    """A number that tensors share where they share memory, as programs compare it; a fake one has no address."""
    if not isinstance(tensor, FakeTensor):
        return torch._C.TensorBase.data_ptr(tensor)
    return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()


def _storage_address(storage: torch.UntypedStorage) -> int:
    """The same of a storage: saving looks for weights that share one."""
    return storage._cdata if storage.device.type in (DEVICE, "meta") else torch._C.StorageBase.data_ptr(storage)  # type: ignore[attr-defined]


class _GradInstead:
    """Inference mode as a mode of autograd; it ends with the object, as Dynamo drops the one that it enters."""

    def __init__(self, is_on: bool):
        self._is_on, self._modes = is_on, contextlib.ExitStack()

    def __enter__(self) -> None:
        before = torch.is_grad_enabled()
        self._modes.callback(torch._C._set_grad_enabled, before)
        torch._C._set_grad_enabled(not self._is_on)

    def __exit__(self, *exception: object) -> None:
        self._modes.close()

    def __del__(self) -> None:
        self._modes.close()


def _set_device(index: Any) -> None:
    """The present card, where the process drives several. A number that no card of the machine has is an error."""
    to_virtual(torch.device("cuda", index) if isinstance(index, int) else index)
    choose(index)


def _device_answers(device: Device, ranks: int) -> dict[str, Any]:
    major, minor = device.compute_capability or (0, 0)
    name = device.device_names[0] if device.device_names else device.name
    shared, reserved = shared_bytes_of_block((major, minor)), RESERVED_BYTES if major >= AMPERE else 0
    properties = DeviceProperties(
        name=name, major=major, minor=minor, total_memory=device.memory_bytes, multi_processor_count=device.sm_count,
        L2_cache_size=device.l2_bytes, warp_size=WARP_THREADS, regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=threads((major, minor)), shared_memory_per_block=SHARED_BYTES,
        shared_memory_per_block_optin=shared, shared_memory_per_multiprocessor=shared + reserved,
        clock_rate=round(device.boost_clock_hertz / KILO), is_integrated=0, is_multi_gpu_board=0, uuid="GPU-0",
        gcnArchName="",
    )  # fmt: skip
    state = [torch.zeros(16, dtype=torch.uint8, device="cpu")]
    default = CudaStream(number=0)
    return {
        "is_available": lambda: True, "device_count": lambda: ranks, "current_device": lambda: this_card().index,
        "is_initialized": lambda: True, "init": nothing, "_lazy_init": nothing, "_lazy_call": nothing,
        "set_device": _set_device, "synchronize": nothing, "ipc_collect": nothing,
        "get_device_name": lambda *_, **__: name, "get_device_capability": lambda *_, **__: (major, minor),
        "get_device_properties": lambda *_, **__: properties, "_get_device_properties": lambda *_, **__: properties,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda including_emulation=True: including_emulation or device.has_bf16,
        "is_tf32_supported": lambda: (major, minor) >= (8, 0),
        "manual_seed": nothing, "manual_seed_all": nothing, "seed": nothing, "seed_all": nothing,
        "initial_seed": lambda: 0, "get_rng_state": lambda *_, **__: state[0].clone(), "set_rng_state": nothing,
        "get_rng_state_all": lambda: [state[0].clone()], "set_rng_state_all": nothing,
        "current_stream": lambda *_, **__: (VirtualBackend._streams[1:] or [default])[-1],
        "default_stream": lambda *_, **__: default, "Stream": CudaStream, "Event": CudaEvent, "stream": _Using,
        "device": _Using, "StreamContext": _Using, "is_current_stream_capturing": is_capturing,
        "can_device_access_peer": lambda *_, **__: True, "cudart": runtime,
    }  # fmt: skip


def _emptying(card: LiveCard, recorder: Recorder) -> Callable[[], None]:
    """`torch.cuda.empty_cache`: the driver takes memory back once the device has caught up."""
    call = Call(EMPTY_CACHE, (), (), (), (), 0, 0, 0, is_view=True, syncs=True)

    def empty() -> None:
        card.empty_cache()
        if not recorder.is_muted and not recorder.is_closed:
            recorder.append(call, lambda: call)

    return empty


def _memory_answers(card: LiveCard, total_bytes: int) -> dict[str, Any]:
    def of(read: Callable[[LiveCard], Any]) -> Callable[..., Any]:
        """What the card of a device answers; the present one's where none is named."""
        return lambda device=None, *_, **__: read(card.at(number_of(device)))

    return {
        "memory_allocated": of(lambda one: one.allocated_bytes),
        "max_memory_allocated": of(lambda one: one.peak_allocated_bytes),
        "memory_reserved": of(lambda one: one.reserved_bytes),
        "max_memory_reserved": of(lambda one: one.peak_reserved_bytes),
        "memory_cached": of(lambda one: one.reserved_bytes),
        "mem_get_info": of(lambda one: (one.free_bytes, total_bytes)),
        "empty_cache": card.empty_cache,
        "reset_peak_memory_stats": of(lambda one: one.reset_peaks()),
        "reset_max_memory_allocated": of(lambda one: one.reset_peaks()),
    }  # fmt: skip


def _accelerator_answers(device: Device, card: LiveCard, ranks: int) -> dict[str, Any]:
    cuda = torch.device("cuda")  # without an index (torch/accelerator/__init__.py, 2.13): programs add theirs
    answers = {
        "is_available": lambda: True, "device_count": lambda: ranks, "current_accelerator": lambda *_, **__: cuda,
        "current_device_index": lambda: this_card().index, "current_device_idx": lambda: this_card().index,
        "set_device_index": _set_device, "set_device_idx": _set_device, "synchronize": nothing,
        "current_stream": lambda *_, **__: CudaStream(number=0),
        "device_index": _Using, "set_stream": nothing,
    }  # fmt: skip
    memory = _memory_answers(card, device.memory_bytes) | {"memory_stats": torch.cuda.memory_stats}
    memory["get_memory_info"] = memory["mem_get_info"]
    return answers | {name: memory[name] for name in memory if hasattr(torch.accelerator, name)}
