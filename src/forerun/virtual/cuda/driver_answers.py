"""What PyTorch's CUDA functions find below Python: allocator counters, the driver, NVML, NCCL and NVTX.

The functions themselves stay PyTorch's (`torch.cuda.memory_stats` flattens what is here, `memory_summary` prints it).
The sensors of a card that nobody has (temperature, power) answer plausibly, and each line that asks is noted.

Not covered: counts of allocations and segments, which read 0; snapshots, for which `exec --snapshot` is there.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from forerun.hardware.catalogue import Device
from forerun.virtual.cuda.cards import number_of

NCCL_VERSION = (2, 29, 7)
"""Of the wheels of PyTorch 2.13.0 (their metadata: nvidia-nccl-cu13==2.29.7)."""
BYTES, COUNTS = ("allocated", "reserved", "active"), ("allocation", "segment", "active", "inactive_split")
OTHER_BYTES = ("inactive_split_bytes", "requested_bytes")
OVERSIZE = ("oversize_allocations", "oversize_segments")
SCALARS = (
    "num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc", "num_device_free",
)  # fmt: skip
POOLS = ("all", "large_pool", "small_pool")
EMPTY = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
CELSIUS, UTILISATION = 60, 100
MILLIWATTS = 1e3

Note = Callable[[str, Any], None]
"""Notes a kind of value that nobody can know, and the answer."""


def statistics(card: Any) -> dict[str, Any]:
    """Counters of the allocator as `torch._C._cuda_memoryStats` nests them (c10/cuda, 2.13); bytes."""
    now = {"allocated": card.allocated_bytes, "reserved": card.reserved_bytes, "active": card.allocated_bytes}
    peak = {
        "allocated": card.peak_allocated_bytes, "reserved": card.peak_reserved_bytes,
        "active": card.peak_allocated_bytes,
    }  # fmt: skip
    nested: dict[str, Any] = {}
    for name in BYTES:
        whole = {"current": now[name], "peak": peak[name], "allocated": peak[name], "freed": peak[name] - now[name]}
        nested[f"{name}_bytes"] = {"all": whole, "large_pool": dict(whole), "small_pool": dict(EMPTY)}
    nested["requested_bytes"] = nested["allocated_bytes"]
    for name in (*COUNTS, "inactive_split_bytes"):
        nested[name] = {pool: dict(EMPTY) for pool in POOLS}
    return nested | {name: dict(EMPTY) for name in OVERSIZE} | dict.fromkeys(SCALARS, 0)


def library_answers(card: Any) -> dict[str, Any]:
    """Functions of `torch._C`."""
    sync_mode = [0]
    major, minor, patch = NCCL_VERSION
    return {
        "_cuda_memoryStats": lambda device=None, *_: statistics(card.at(number_of(device))),
        "_cuda_hostMemoryStats": lambda: {},
        "_cuda_resetAccumulatedMemoryStats": nothing, "_cuda_resetAccumulatedHostMemoryStats": nothing,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_setMemoryFraction": lambda share, device=None: card.at(number_of(device)).limit(share),
        "_cuda_getMemoryFraction": lambda device=None: card.at(number_of(device)).fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_accelerator_setAllocatorSettings": card.configure,
        "_cuda_get_sync_debug_mode": lambda: sync_mode[0],
        "_cuda_set_sync_debug_mode": lambda mode: sync_mode.__setitem__(0, mode),
        "_cuda_memorySnapshot": lambda *_, **__: {"segments": [], "device_traces": [[]], "allocator_settings": {}},
        "_cuda_record_memory_history": nothing, "_cuda_record_memory_history_legacy": nothing,
        "_cuda_getCurrentBlasHandle": lambda: 0, "_cuda_getCurrentSolverHandle": lambda: 0,
        "_host_emptyCache": nothing, "_cuda_cudaCachingAllocator_enable": nothing,
        "_cuda_tunableop_is_enabled": lambda: False, "_cuda_tunableop_enable": nothing,
        "_nccl_version": lambda: major << 32 | minor << 16 | patch, "_nccl_version_suffix": lambda: b"",
    }  # fmt: skip


def sensor_answers(device: Device, card: Any, note: Note) -> dict[str, Any]:
    """Functions of `torch.cuda` that ask NVML."""

    def unknown(what: str, value: int) -> Callable[..., int]:
        def answer(*_: object, **__: object) -> int:
            note(what, value)
            return value

        return answer

    watts = round((device.board_watts or 0) * MILLIWATTS)
    return {
        "temperature": unknown("temperature of the GPU, in °C", CELSIUS),
        "power_draw": unknown("power that the GPU draws, in mW", watts),
        "clock_rate": unknown("clock of the GPU, in MHz", round(device.boost_clock_mhz or 0)),
        "utilization": unknown("utilisation of the GPU, in %", UTILISATION),
        "memory_usage": unknown("utilisation of the GPU's memory, in %", UTILISATION),
        "device_memory_used": lambda device=None, **__: card.at(number_of(device)).reserved_bytes,
        "list_gpu_processes": lambda *_, **__: "GPU:0\nno processes are running",
    }


def runtime() -> SimpleNamespace:
    """What `torch.cuda.cudart()` returns; every call succeeds."""
    calls = ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister", "cudaStreamCreate",
             "cudaStreamDestroy")  # fmt: skip
    return SimpleNamespace(
        **dict.fromkeys(calls, lambda *_: 0),
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=lambda _: "no error",
    )


def markers() -> SimpleNamespace:
    """`torch._C._nvtx`: ranges that no profiler sees; depths and ids as there."""
    depth = [0]

    def push(_: str) -> int:
        depth[0] += 1
        return depth[0] - 1

    def pop() -> int:
        depth[0] -= 1
        return depth[0]

    return SimpleNamespace(
        rangePushA=push, rangePop=pop, rangeStartA=lambda _: 0, rangeEnd=nothing, markA=nothing, rangeRegister=nothing,
        deviceRangeStart=lambda *_: 0, deviceRangeEnd=nothing,
    )  # fmt: skip


def nothing(*_: object, **__: object) -> None:
    """There is nothing to do, or to wait for."""
