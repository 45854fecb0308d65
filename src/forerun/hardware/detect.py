"""What is this machine? The only place that asks torch, NVML, /proc and the cgroups about hardware.

Output: a `DetectedDevice`: the catalogue row of the card (with the memory that the driver reports), or a CPU `Device`
whose capacity is the memory limit of this process. Cores and memory honour CPU affinity and cgroup limits (versions 1
and 2), since a container sees the host's numbers everywhere else. Every source is a field of `Readers`, so that tests
pass recorded text.

Not covered: clocks, power limits and achieved rates (calibration measures them), more than one kind of card in a host.
"""

import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from forerun.errors import NotSupported, UnknownDevice, nearest
from forerun.hardware.catalogue import Device, device_of_name_string, devices
from forerun.records import Record
from forerun.units import format_bytes

ISA_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instruction sets that decide the speed of a training step, as /proc/cpuinfo spells them."""

PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "safetensors",
    "peft",
    "bitsandbytes",
    "datasets",
    "nvidia-ml-py",
)
"""Distributions whose versions change a forecast or a run."""

NO_NVML = (
    "nvidia-ml-py is not installed: memory outside PyTorch's allocator cannot be measured. "
    'Install it with pip install "forerun[gpu]".'
)


class Cores(Record):
    """CPU cores: in the host, and usable by this process (affinity and cgroup quota)."""

    physical: int
    logical: int
    usable: int


class MemoryReading(Record):
    """Memory of the detected device: what one process may use at most, and what is free now."""

    total_bytes: int
    available_bytes: int


class CudaReading(Record):
    """What torch reports of one CUDA card."""

    name: str
    total_bytes: int
    available_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    cuda_version: str | None


class DetectedDevice(Record):
    """This machine as a training device."""

    device: Device
    kind: Literal["cuda", "cpu"]
    reported_name: str
    """Name of the device as the driver or /proc/cpuinfo prints it."""
    memory: MemoryReading
    host_memory: MemoryReading
    cores: Cores
    threads: int
    isa_flags: tuple[str, ...]
    driver_version: str | None = None
    cuda_version: str | None = None
    versions: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 runs in hardware: capability 8.0 on CUDA, avx512_bf16 or amx_bf16 on a CPU."""
        return self.device.has_bf16


def read_text(path: str) -> str | None:
    """The text of a small system file, or None where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_card_names(folder: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Names of the CUDA cards that this process may use, as Linux' driver lists them; no context is made."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    texts = [read_text(str(path)) or "" for path in sorted(Path(folder).glob("*/information"))]
    names = [match[1] for text in texts if (match := re.search(r"^Model:\s*(\S.*?)\s*$", text, re.MULTILINE))]
    if visible is None:
        return names
    parts = [part.strip() for part in visible.split(",")]
    if not all(part.isdigit() for part in parts):  # empty, -1, or by UUID, which these files have not in all drivers
        return names if any(part.startswith(("GPU-", "MIG-")) for part in parts) else []
    return [names[int(part)] for part in parts if int(part) < len(names)]


def read_affinity() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def read_host() -> tuple[int, int, int, int]:
    """Physical cores, logical cores, total and available bytes of memory of the host."""
    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or 1
    return psutil.cpu_count(logical=False) or logical, logical, memory.total, memory.available


def read_threads() -> int:
    """Threads that torch uses inside one operator."""
    import torch

    return torch.get_num_threads()


def read_cuda_build() -> str | None:
    """CUDA version that torch was built with, or None for a CPU build."""
    import torch

    return torch.version.cuda


def read_cuda() -> CudaReading | None:
    """The current CUDA card, or None without one; creates a CUDA context in this process."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info()
    return CudaReading(
        name=properties.name,
        total_bytes=total,
        available_bytes=free,
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        cuda_version=torch.version.cuda,
    )


def read_driver_version() -> str | None:
    """Version of the NVIDIA driver by NVML; None without the driver.

    Raises:
        ModuleNotFoundError: nvidia-ml-py is not installed.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def read_version(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Functions that detection reads the machine with."""

    text: Callable[[str], str | None] = read_text
    affinity: Callable[[], int] = read_affinity
    host: Callable[[], tuple[int, int, int, int]] = read_host
    threads: Callable[[], int] = read_threads
    cuda: Callable[[], CudaReading | None] = read_cuda
    cuda_build: Callable[[], str | None] = read_cuda_build
    driver_version: Callable[[], str | None] = read_driver_version
    version: Callable[[str], str | None] = read_version


def detect(kind: Literal["auto", "cuda", "cpu"] = "auto", *, readers: Readers | None = None) -> DetectedDevice:
    """The training device of this machine: a CUDA card where torch sees one, else the CPU.

    Raises:
        NotSupported: `kind` is "cuda" and torch sees no card.
        UnknownDevice: the card is not in the catalogue; the message holds all that was read.
    """
    readers = readers or Readers()
    cuda = None if kind == "cpu" else readers.cuda()
    if cuda is not None:
        return _detect_cuda(cuda, readers)
    if kind == "cuda":
        raise NotSupported(
            "A CUDA device was asked for, and torch sees none. Run `forerun doctor` for the reason, or use cpu."
        )
    return detect_cpu(readers=readers)


def detect_cpu(*, readers: Readers | None = None) -> DetectedDevice:
    """The CPU of this machine as a training device, whether or not there is a card beside it."""
    readers = readers or Readers()
    memory, isa_flags = _host_memory(readers), _isa_flags(readers)
    device = Device(
        name="cpu",
        kind="cpu",
        architecture=platform.machine().lower() or "unknown",
        memory_bytes=memory.total_bytes,
        isa_flags=isa_flags,
        sources={"memory_bytes": "memory limit of this process: host total or cgroup limit, whichever is less"},
    )
    return DetectedDevice(
        device=device,
        kind="cpu",
        reported_name=_cpu_field(readers, "model name") or platform.processor() or platform.machine(),
        memory=memory,
        host_memory=memory,
        cores=_cores(readers),
        threads=readers.threads(),
        isa_flags=isa_flags,
        versions=_versions(readers),
    )


def _detect_cuda(cuda: CudaReading, readers: Readers) -> DetectedDevice:
    driver_version, notes = _driver(readers)
    return DetectedDevice(
        device=_catalogue_device(cuda),
        kind="cuda",
        reported_name=cuda.name,
        memory=MemoryReading(total_bytes=cuda.total_bytes, available_bytes=cuda.available_bytes),
        host_memory=_host_memory(readers),
        cores=_cores(readers),
        threads=readers.threads(),
        isa_flags=_isa_flags(readers),
        driver_version=driver_version,
        cuda_version=cuda.cuda_version,
        versions=_versions(readers),
        notes=notes,
    )


def _catalogue_device(cuda: CudaReading) -> Device:
    row = device_of_name_string(cuda.name, cuda.total_bytes)
    if row is None:
        major, minor = cuda.compute_capability
        rows = nearest(cuda.name, [device.name for device in devices()])
        raise UnknownDevice(
            f"{cuda.name!r} is not in the catalogue. Read from torch: {format_bytes(cuda.total_bytes)}, "
            f"compute capability {major}.{minor}, {cuda.sm_count} SMs. Nearest rows: {rows}. "
            f"Name one of them with --gpu for a forecast, or choose cpu."
        )
    source = "reported by the driver of this machine"
    return row.model_copy(
        update={"memory_bytes": cuda.total_bytes, "sources": {**row.sources, "memory_bytes": source}},
    )


def _versions(readers: Readers) -> dict[str, str]:
    versions = {package: readers.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in versions.items() if text is not None}}


def _driver(readers: Readers) -> tuple[str | None, tuple[str, ...]]:
    try:
        return readers.driver_version(), ()
    except ModuleNotFoundError:
        return None, (NO_NVML,)


def _cpu_field(readers: Readers, *names: str) -> str:
    for line in (readers.text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""


def _isa_flags(readers: Readers) -> tuple[str, ...]:
    present = set(_cpu_field(readers, "flags", "Features").split())
    return tuple(flag for flag in ISA_FLAGS if flag in present)


def _cores(readers: Readers) -> Cores:
    physical, logical, _, _ = readers.host()
    quotas = [quota for quota in (_quota_v2(readers), _quota_v1(readers)) if quota is not None]
    usable = min([readers.affinity(), *(max(1, int(quota)) for quota in quotas)])
    return Cores(physical=physical, logical=logical, usable=usable)


def _quota_v2(readers: Readers) -> float | None:
    quotas = []
    for folder in _cgroup_folders(readers, controller=""):
        quota, _, period = (readers.text(f"{folder}/cpu.max") or "max").strip().partition(" ")
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _quota_v1(readers: Readers) -> float | None:
    quotas = []
    for folder in _cgroup_folders(readers, controller="cpu"):
        quota = readers.text(f"{folder}/cpu.cfs_quota_us")
        period = readers.text(f"{folder}/cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _host_memory(readers: Readers) -> MemoryReading:
    """The host's memory, or the tightest cgroup limit above this process where that is less."""
    _, _, total, available = readers.host()
    for limit, used in (*_limits_v2(readers), *_limits_v1(readers)):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return MemoryReading(total_bytes=total, available_bytes=available)


def _limits_v2(readers: Readers) -> list[tuple[int, int]]:
    return [
        reading
        for folder in _cgroup_folders(readers, controller="")
        if (reading := _limit(readers, folder, "memory.max", "memory.current", "inactive_file")) is not None
    ]


def _limits_v1(readers: Readers) -> list[tuple[int, int]]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return [
        reading
        for folder in _cgroup_folders(readers, controller="memory")
        if (reading := _limit(readers, folder, *names)) is not None
    ]


def _limit(readers: Readers, folder: str, limit: str, usage: str, cache: str) -> tuple[int, int] | None:
    """Limit and unreclaimable use of one cgroup in bytes; None where it sets no limit."""
    text = (readers.text(f"{folder}/{limit}") or "max").strip()
    if text == "max":
        return None
    # the kernel drops the page cache before it kills anybody, so inactive file pages count as free
    used = int(readers.text(f"{folder}/{usage}") or 0)
    pairs = dict(line.split(" ", 1) for line in (readers.text(f"{folder}/memory.stat") or "").splitlines())
    return int(text), max(0, used - int(pairs.get(cache, 0)))


def _cgroup_folders(readers: Readers, *, controller: str) -> list[str]:
    """Folders of this process's cgroup and all above it; an empty controller means version 2."""
    root = "/sys/fs/cgroup" + (f"/{controller}" if controller else "")
    for line in (readers.text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            return ["/".join([root, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return [root]
