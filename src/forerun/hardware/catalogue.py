"""Which GPU is it, and what can it do at best?

Input: a catalogue name ("a100-40gb") or the device-name string that a driver reports. Output: a frozen `Device` with
bytes, bytes per second and dense FLOP per second. The rows are data, in `gpus.toml` beside this file; each number
there carries its source. Names match exactly (catalogue names without regard to case): a name that is not recorded is
an error, never a guess from a substring.

Not covered: achieved rates (the clock fits those), power limits and clocks of a particular machine (`detect`, and
calibration), vendors other than NVIDIA.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from forerun.errors import MissingPeak, UnknownDevice, nearest
from forerun.records import Range, Record
from forerun.units import GIGA, MIB, TERA

MEMORY_TOLERANCE_FRACTION = 0.1
"""How far a reported total may lie from a row: ECC on or off moves it by 6.7 %, the driver's own reserve by 5 %."""

BF16_CAPABILITY = (8, 0)
"""First compute capability with bfloat16 tensor cores (CUDA C++ Programming Guide 12.8, table of arithmetic)."""
LAZY_SINCE = (11, 7)
"""First version of CUDA whose kernels are loaded when they are needed (pytorch/pytorch#86509)."""

BF16_ISA_FLAGS = ("avx512_bf16", "amx_bf16")
"""CPU instruction sets that multiply bfloat16 natively, as /proc/cpuinfo spells them."""


class Device(Record):
    """One device, best case: a GPU of the catalogue, or the CPU of this machine.

    The fields from `memory_bytes` to `compute_capability` are null only for the CPU, whose rates are measured.
    """

    name: str
    """Catalogue name, lower case."""
    kind: Literal["cuda", "cpu"] = "cuda"
    architecture: str
    """"volta" … "blackwell"; for a CPU its machine type."""
    memory_bytes: int
    """The most bytes that one process can see: CUDA's total (below the datasheet's size), or the CPU memory limit."""
    bandwidth_bytes_per_second: float | None = None
    host_link_bytes_per_second: float | None = None
    """Between host and device in one direction, as the link's generation states it; null for the CPU."""
    peak_flops_per_second: Mapping[str, float] = {}
    """Dense peak by torch dtype name; "float16" and below accumulate in float32. A missing key: not in hardware."""
    sm_count: int | None = None
    l2_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    board_watts: float | None = None
    """The board's power limit as sold; null where it is not known, or sources differ."""
    device_names: tuple[str, ...] = ()
    """Strings that drivers report, recorded from real machines."""
    context_bytes: Range = Range(optimistic=0, expected=0, conservative=0)
    """CUDA context and lazily loaded kernels, outside PyTorch's allocator."""
    price_per_hour: float | None = None
    """US dollars for one device, on demand; null where no source was found."""
    price_date: str | None = None
    price_source: str | None = None
    isa_flags: tuple[str, ...] = ()
    """CPU only: instruction sets that matter."""
    sources: Mapping[str, str] = Field(default={})
    """Field name → where its number comes from."""

    def peak(self, dtype: str) -> float:
        """Dense peak of a dtype in FLOP/s (for "int8" in integer operations per second).

        Raises:
            MissingPeak: the hardware has no such arithmetic, or the device is a CPU that was not yet measured.
        """
        if dtype.startswith("float8_"):  # datasheets have one rate for both of its formats
            dtype = "float8"
        if dtype in self.peak_flops_per_second:
            return self.peak_flops_per_second[dtype]
        if self.kind == "cpu":
            remedy = "Run `forerun calibrate`: the rates of a CPU are measured, not looked up."
        else:
            remedy = f"Known: {', '.join(self.peak_flops_per_second)}. Choose a precision that uses one of them."
        raise MissingPeak(f"No dense peak for {dtype} on {self.name}. {remedy}")

    @property
    def boost_clock_hertz(self) -> float:
        """Cycles per second behind the stated peaks: each FP32 lane multiplies and adds once per cycle."""
        # CUDA C++ Programming Guide 12.8, arithmetic: 64 FP32 lanes per multiprocessor to capability 8.0, then 128
        lanes = 64 if (self.compute_capability or (0, 0)) <= (8, 0) else 128
        return self.peak("float32") / (2 * lanes * (self.sm_count or 1))

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 runs in hardware. PyTorch's own check also says yes to emulation, as on a T4."""
        if self.compute_capability is not None:
            return self.compute_capability >= BF16_CAPABILITY
        return any(flag in self.isa_flags for flag in BF16_ISA_FLAGS)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("forerun.hardware").joinpath("gpus.toml").read_text(encoding="utf-8"))


@cache
def _rows() -> dict[str, Device]:
    table = _table()
    link = table["host_link"]
    return {row["name"]: _device_of_row(row, table["context"], link, table["source"]) for row in table["gpu"]}


def _device_of_row(
    row: dict[str, Any], contexts: dict[str, Any], link: dict[str, Any], texts: dict[str, str]
) -> Device:
    row = dict(row)
    major, minor = row["compute_capability"]
    context = contexts[row.pop("context", f"{major}.{minor}")]
    sources = {**row.pop("sources"), "context_bytes": context["source"], "host_link_bytes_per_second": link["source"]}
    return Device(
        memory_bytes=round(row.pop("memory_mib") * MIB),
        bandwidth_bytes_per_second=row.pop("bandwidth_gb_per_second") * GIGA,
        host_link_bytes_per_second=link["gb_per_second"][row["architecture"]] * GIGA,
        peak_flops_per_second={dtype: tera * TERA for dtype, tera in row.pop("peak_tera").items()},
        l2_bytes=round(row.pop("l2_mib") * MIB),
        context_bytes=_range(context["mib"]),
        sources={field: _expand(text, texts) for field, text in sources.items()},
        **row,
    )


def _range(mib: dict[str, float]) -> Range:
    return Range(**{scenario: value * MIB for scenario, value in mib.items()})


def _expand(text: str, texts: dict[str, str]) -> str:
    """Replace a leading key of the [source] table ("ada; remark") by the text it stands for."""
    key, separator, remark = text.partition(";")
    return f"{texts.get(key, key)}{separator}{remark}"


def devices() -> list[Device]:
    """All GPUs of the catalogue, in its order (by generation, then size)."""
    return list(_rows().values())


def device(name: str, cuda: str = "") -> Device:
    """The GPU of that catalogue name, without regard to case; `cuda` is the version that PyTorch was built for.

    Before CUDA 11.7 the context holds every kernel, about 1 GiB more; without a version it is today's.

    Raises:
        UnknownDevice: no such row; the message lists the nearest names.
        ValueError: `cuda` is no version such as "11.3".
    """
    rows = _rows()
    if name.lower() not in rows:
        raise UnknownDevice(
            f"No GPU named {name!r} in the catalogue. Nearest: {nearest(name, list(rows))}. "
            f"`forerun gpus` lists all {len(rows)}; `cpu` means this machine."
        )
    row = rows[name.lower()]
    if not cuda or tuple(int(part) for part in cuda.split(".")[:2]) >= LAZY_SINCE:
        return row
    contexts = [
        c for c in _table()["eager_context"].values() if tuple(c["capability"]) <= (row.compute_capability or (0, 0))
    ]
    context = max(contexts, key=lambda c: c["capability"])
    return row.model_copy(update={"context_bytes": _range(context["mib"])})


def device_of_name_string(reported: str, memory_bytes: int | None = None) -> Device | None:
    """The row whose recorded device-name strings hold `reported` exactly, or None.

    With `memory_bytes` (the total that the driver reports) a row must also lie within `MEMORY_TOLERANCE_FRACTION` of
    it: a partition of a card, or a card with other memory, reports the same name but is not that row.
    """
    matches = [row for row in devices() if reported in row.device_names]
    if memory_bytes is not None:
        matches = [row for row in matches if abs(row.memory_bytes / memory_bytes - 1) <= MEMORY_TOLERANCE_FRACTION]
    return matches[0] if len(matches) == 1 else None
