"""Which GPU is it, and what can it do at best?

Input: a name ("a100-40gb", "RTX 4070 Ti Super", "g5.xlarge") or the device-name string that a driver reports. Output:
a frozen `Device` with bytes, bytes per second and dense FLOP per second. The rows are data, in `gpus.toml` and `cards/`
beside this file; each number there carries its source, and that of a number that a rule made begins with "derived".
What people type is read by `names.py`: one card is taken and said, several are an error that lists them. Strings of
drivers match exactly.

Not covered: achieved rates (the clock fits those), power limits and clocks of a particular machine (`detect`, and
calibration).
"""

import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from forerun.errors import MissingPeak, UnknownDevice
from forerun.hardware.names import NOISE, meaning, nearest_names, spelled
from forerun.hardware.rates import EMULATED_BFLOAT16_SHARE, FLOAT64_SHARES
from forerun.hardware.stored_prices import stored_fields
from forerun.records import Range, Record
from forerun.settings.plain import in_short
from forerun.spelling import NameNote, Spelled, alike, holds
from forerun.units import GIB, GIGA, MEGA, MIB, TERA

MEMORY_TOLERANCE_FRACTION = 0.1
"""How far a reported total may lie from a row: ECC on or off moves it by 6.7 %, the driver's own reserve by 5 %."""

FILES = (
    "sources", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "superchips", "amd", "slices",
)  # fmt: skip
"""Files of `cards/`; the rows of gpus.toml come before them."""
ROW, NAME = "[[gpu]]", re.compile(r'^name = "(.*)"$', re.MULTILINE)
ARCHITECTURES = (
    "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna1", "cdna2", "cdna3", "cdna4", "rdna3",
)  # fmt: skip
"""In the order in which rows are listed."""
BF16_CAPABILITY = (8, 0)
"""First compute capability with bfloat16 tensor cores (CUDA C++ Programming Guide 12.8, table of arithmetic)."""
MOST_LISTED = 8
"""GPUs that one message lists."""
LAZY_SINCE = (11, 7)
"""First version of CUDA whose kernels are loaded when they are needed (pytorch/pytorch#86509)."""

OLDEST_CAPABILITY: tuple[int, int] = (7, 5)
"""Of PyTorch's wheels for CUDA 12.8 and later, from 2.11 on (pytorch/pytorch#172352, #175253)."""
AMD_ARCHITECTURES = ("cdna", "rdna")
REAL_DTYPES = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Of a part of a complex number: its products are products of real ones."""
BF16_ISA_FLAGS = ("avx512_bf16", "amx_bf16")
"""CPU instruction sets that multiply bfloat16 natively, as /proc/cpuinfo spells them."""


Segment = Literal["consumer", "laptop", "workstation", "datacenter", "slice"]
"""What a card is sold for; a slice is a part of a card in MIG mode."""


class Device(Record):
    """One device, best case: a GPU of the catalogue, or the CPU of this machine.

    The fields from `memory_bytes` to `l2_bytes` are null only for the CPU, whose rates are measured.
    """

    name: str
    """Catalogue name, lower case."""
    title: str = ""
    """The product's name; empty for the rows of gpus.toml."""
    segment: Segment = "datacenter"
    kind: Literal["cuda", "cpu"] = "cuda"
    architecture: str
    """"pascal" … "blackwell", "cdna1" … "cdna4", "rdna3"; for a CPU its machine type."""
    box_gib: float | None = None
    """The size on the box; null in rows of gpus.toml and for slices."""
    memory_bytes: int
    """The most bytes that one process can see: CUDA's total (below the datasheet's size), or the CPU memory limit."""
    bandwidth_bytes_per_second: float | None = None
    host_link_bytes_per_second: float | None = None
    """Between host and device in one direction, as the link's generation states it; null for the CPU."""
    peak_flops_per_second: Mapping[str, float] = {}
    """Dense peak by torch dtype name; "float16" and below accumulate in float32. A missing key: not in hardware."""
    sm_count: int | None = None
    l2_bytes: int | None = None
    inline_ecc: bool = False
    """Whether error correction is on as sold and its bits lie in GDDR memory itself, beside what they protect."""
    compute_capability: tuple[int, int] | None = None
    """Of NVIDIA; null for a CPU and for AMD, whose numbers of that kind mean something else."""
    attention: Literal["by-capability", "fused", "plain"] = "by-capability"
    """AMD: whether the fused kernels of attention are on without a switch."""
    prefers_cudnn: bool = True
    """Whether PyTorch takes cuDNN's attention by itself on the capabilities that it is for; older ones do not."""
    boost_clock_mhz: float | None = None
    """Cycles behind the stated peaks; null in rows of gpus.toml, where they follow from the peaks."""
    slice_of: str | None = None
    """The card that a slice is part of."""
    links: str | None = None
    """Row of networks.toml that joins such cards; null where networks.toml lists the card, or nobody knows."""
    remark: str = ""
    """What a reader of a forecast should know of this row."""
    board_watts: float | None = None
    """The board's power limit as sold; null where it is not known, or sources differ."""
    device_names: tuple[str, ...] = ()
    """Strings that drivers report, recorded from real machines."""
    context_bytes: Range = Range(optimistic=0, expected=0, conservative=0)
    """CUDA context and lazily loaded kernels, outside PyTorch's allocator."""
    cudnn_bytes: int = 0
    """Kernels that cuDNN loads beside it with the first convolution, under a CUDA before 11.7 that loads all."""
    price_per_hour: float | None = None
    """US dollars for one device, on demand; null where no source was found."""
    price_date: str | None = None
    price_source: str | None = None
    isa_flags: tuple[str, ...] = ()
    """CPU only: instruction sets that matter."""
    sources: Mapping[str, str] = Field(default={})
    """Field name → where its number comes from."""

    def peak(self, dtype: str) -> float:
        """Dense peak of a dtype in FLOP/s (for "int8" in integer operations per second); of complex ones, in real FLOP.

        Raises:
            MissingPeak: the hardware has no such arithmetic, or the device is a CPU that was not yet measured.
        """
        if dtype.startswith("float8_"):  # datasheets have one rate for both of its formats
            dtype = "float8"
        dtype = REAL_DTYPES.get(dtype, dtype)
        if dtype in self.peak_flops_per_second:
            return self.peak_flops_per_second[dtype]
        shares = {"float64": FLOAT64_SHARES.get(self.compute_capability or self.architecture)}
        share = EMULATED_BFLOAT16_SHARE if dtype == "bfloat16" and self.emulates_bf16 else shares.get(dtype)
        if share is not None and self.kind == "cuda":
            return share * self.peak_flops_per_second["float32"]
        if self.kind == "cpu":
            remedy = "Run `forerun calibrate`: the rates of a CPU are measured, not looked up."
        else:
            remedy = f"Known: {', '.join(self.peak_flops_per_second)}. Choose a precision that uses one of them."
        raise MissingPeak(f"No dense peak for {dtype} on {self.name}. {remedy}")

    def product_dtype(self, dtype: str, *, tf32: bool) -> str:
        """TF32 for fp32 where it is allowed; a GPU without it ignores the switch, as PyTorch does."""
        return "tfloat32" if dtype == "float32" and tf32 and "tfloat32" in self.peak_flops_per_second else dtype

    @property
    def boost_clock_hertz(self) -> float:
        """Cycles per second behind the stated peaks: each FP32 lane multiplies and adds once per cycle."""
        if self.boost_clock_mhz is not None:
            return self.boost_clock_mhz * MEGA
        # CUDA C++ Programming Guide 12.8, arithmetic: 64 FP32 lanes per multiprocessor to capability 8.0, then 128
        lanes = 64 if (self.compute_capability or (0, 0)) <= (8, 0) else 128
        return self.peak("float32") / (2 * lanes * (self.sm_count or 1))

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 runs in hardware. PyTorch's own check also says yes to emulation, as on a T4."""
        if self.is_amd:
            return "bfloat16" in self.peak_flops_per_second
        if self.compute_capability is not None:
            return self.compute_capability >= BF16_CAPABILITY
        return any(flag in self.isa_flags for flag in BF16_ISA_FLAGS)

    @property
    def emulates_bf16(self) -> bool:
        """Whether PyTorch computes products in bfloat16 without hardware for them, and without tensor cores."""
        return self.kind == "cuda" and not self.is_amd and not self.has_bf16

    @property
    def is_amd(self) -> bool:
        """Whether PyTorch reaches it through ROCm."""
        return self.architecture.startswith(AMD_ARCHITECTURES)

    @property
    def has_tensor_cores(self) -> bool:
        """Whether 16-bit products run on units of their own."""
        return self.peak_flops_per_second.get("float16", 0.0) > 1.5 * self.peak_flops_per_second.get("float32", 1.0)

    @property
    def attention_capability(self) -> tuple[int, int]:
        """Compute capability by which kernels of attention are chosen; that of Ampere stands for AMD's fused ones."""
        if self.attention == "fused":
            return BF16_CAPABILITY
        return self.compute_capability or (0, 0)

    @property
    def is_offered(self) -> bool:
        """Whether to propose it to somebody who did not name it: today's PyTorch runs on it, and it is a whole card."""
        capability = self.compute_capability
        return self.segment != "slice" and capability is not None and capability >= OLDEST_CAPABILITY

    @property
    def derived_fields(self) -> tuple[str, ...]:
        """Fields whose number a rule made from numbers of other fields or cards."""
        return tuple(field for field, text in self.sources.items() if text.startswith("derived"))


@cache
def _table() -> dict[str, Any]:
    """Sources, contexts and links of gpus.toml and the files of `cards/`, and by name the text of each row.

    A row is read when it is asked for: reading all takes ten times as long as the rest.
    """
    folder = files("forerun.hardware")
    table: dict[str, Any] = {"rows": {}}
    for name in ("gpus.toml", *(f"cards/{name}.toml" for name in FILES)):
        head, *rows = folder.joinpath(name).read_text(encoding="utf-8").split(f"\n{ROW}\n")
        table["rows"] |= {NAME.findall(row)[0]: row for row in rows}
        for key, content in tomllib.loads(head).items():
            if key == "host_link" and key in table:
                table[key]["gb_per_second"] |= content["gb_per_second"]
            else:
                table[key] = table.get(key, {}) | content
    return table


@cache
def _row(name: str) -> Device:
    table = _table()
    (content,) = tomllib.loads(f"{ROW}\n{table['rows'][name]}")["gpu"]
    row = _device_of_row(content, table["context"], table["host_link"], table["source"])
    newer = stored_fields().get(name)
    if newer is None or (row.price_date or "") > newer["price_date"]:
        return row
    return row.model_copy(update=newer)


@cache
def _rows() -> dict[str, Device]:
    rows = [_row(name) for name in _table()["rows"]]
    rows.sort(key=lambda row: (row.segment == "slice", row.is_amd, ARCHITECTURES.index(row.architecture)))
    return {row.name: row for row in rows}


def forget_prices() -> None:
    """Read stored prices again: they have been updated."""
    for remembered in (_rows, _row, stored_fields):
        remembered.cache_clear()


def _device_of_row(
    row: dict[str, Any], contexts: dict[str, Any], link: dict[str, Any], texts: dict[str, str]
) -> Device:
    row = dict(row)
    capability = row.get("compute_capability")
    context = contexts[row.pop("context", ".".join(map(str, capability or ())))]
    defaults = {"sm_count": "techpowerup", "l2_bytes": "techpowerup"}
    defaults |= {"compute_capability": "capability"} if capability else {}
    defaults |= {"board_watts": "techpowerup"} if "board_watts" in row else {}
    defaults |= {"context_bytes": context["source"], "host_link_bytes_per_second": link["source"]}
    sources = {**defaults, **row.pop("sources")}
    own_link = row.pop("host_link_gb_per_second", link["gb_per_second"][row["architecture"]])
    return Device(
        memory_bytes=round(row.pop("memory_mib") * MIB),
        bandwidth_bytes_per_second=row.pop("bandwidth_gb_per_second") * GIGA,
        host_link_bytes_per_second=own_link * GIGA,
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
    """All GPUs of the catalogue: NVIDIA by generation, then AMD, then slices."""
    return list(_rows().values())


def devices_named(names: Iterable[str]) -> list[Device]:
    """GPUs of the catalogue's own names, in that order; other names are left out. The rest is not read."""
    return [_row(name) for name in names if name in _table()["rows"]]


def group_of_devices(word: str) -> list[Device] | None:
    """GPUs of a group: all, rented (with a price), a segment of the catalogue, slices or amd; else None."""
    groups: dict[str, Callable[[Device], bool]] = {
        "all": lambda row: True,
        "rented": lambda row: row.price_per_hour is not None,
        "amd": lambda row: row.is_amd,
        "slices": lambda row: row.segment == "slice",
    }
    if word.lower() in ("consumer", "laptop", "workstation", "datacenter"):
        return [row for row in devices() if row.segment == word.lower() and row.is_offered]
    return [row for row in devices() if groups[word.lower()](row)] if word.lower() in groups else None


def device(name: str, cuda: str = "") -> Device:
    """The GPU of a name, as people type it; `cuda` is the version that PyTorch was built for.

    A name that is not the catalogue's own is said by a `NameNote`.

    Before CUDA 11.7 the context holds every kernel, about 1 GiB more; without a version it is today's.

    Raises:
        UnknownDevice: no such row, or several could be meant; the message lists them, or the nearest names.
        ValueError: `cuda` is no version such as "11.3".
    """
    return under_cuda(_row_of(name), cuda)


def under_cuda(row: Device, cuda: str) -> Device:
    """A device as programs see it that were built for a version of CUDA; an empty one is today's.

    Raises:
        ValueError: `cuda` is no version such as "11.3".
    """
    if row.kind != "cuda" or row.is_amd or not cuda or tuple(int(part) for part in cuda.split(".")[:2]) >= LAZY_SINCE:
        return row
    contexts = [
        c for c in _table()["eager_context"].values() if tuple(c["capability"]) <= (row.compute_capability or (0, 0))
    ]
    context = max(contexts, key=lambda c: c["capability"])
    own = {"context_bytes": _range(context["mib"]), "cudnn_bytes": round(context.get("cudnn_mib", 0) * MIB)}
    return row.model_copy(update=own)


@cache
def spelled_gpus() -> tuple[Spelled, ...]:
    """All GPUs by the words of their names, for a search."""
    return tuple(
        spelled(row.name, [row.title, *row.device_names], row.box_gib or row.memory_bytes / GIB, row.architecture)
        for row in devices()
    )


def searched_devices(text: str) -> tuple[list[Device], str]:
    """GPUs that a search finds, and a note where it is an alias or finds nothing but what is nearest."""
    rows = _rows()
    match = meaning(text, spelled_gpus(), _reported())
    names = list(dict.fromkeys([*match.names, *holds(text, spelled_gpus(), NOISE)]))
    if names:
        note = match.note.strip(" ,.;") if match.names else ""
        return [rows[name] for name in names], f"{text!r}: {note}." if note.startswith(
            "of which"
        ) or "." in note else ""
    close = alike(text, spelled_gpus(), NOISE)
    return [rows[name] for name in close], f"No GPU has all words of {in_short(text)}; the nearest: {', '.join(close)}."


@cache
def _reported() -> dict[str, list[str]]:
    """Strings of drivers in lower case, with the rows that have them."""
    reported: dict[str, list[str]] = {}
    for row in devices():
        for text in row.device_names:
            reported.setdefault(text.lower(), []).append(row.name)
    return reported


def _row_of(name: str) -> Device:
    if name.lower() in _table()["rows"]:
        return _row(name.lower())
    rows = _rows()
    match = meaning(name, spelled_gpus(), _reported())
    if len(match.names) == 1:
        row = rows[match.names[0]]
        if match.note:
            warnings.warn(f"GPU {in_short(name)} is taken as {difference(row)}{match.note}", NameNote, stacklevel=3)
        return row
    if match.names:
        listed = "; ".join(difference(rows[each]) for each in match.names[:MOST_LISTED])
        raise UnknownDevice(f"{in_short(name)} can be several GPUs: {listed}. {match.note}Name one of them.")
    raise UnknownDevice(
        f"No GPU named {in_short(name)} in the catalogue. {match.note}{' ' if match.note else ''}Nearest: "
        f"{', '.join(nearest_names(name, spelled_gpus()))}. "
        f"`forerun gpus --search TEXT` looks through all {len(rows)}; `cpu` means this machine."
    )


def difference(row: Device) -> str:
    """A row's name with what tells it from its neighbours."""
    bandwidth = (row.bandwidth_bytes_per_second or 0.0) / GIGA
    watts = f", {row.board_watts:g} W" if row.board_watts else ""
    return f"{row.name} ({row.memory_bytes / GIB:.1f} GiB, {bandwidth:,.0f} GB/s, {row.sm_count} SMs{watts})"


def device_of_name_string(reported: str, memory_bytes: int | None = None) -> Device | None:
    """The row whose recorded device-name strings hold `reported` exactly, or None.

    With `memory_bytes` (the total that the driver reports) a row must also lie within `MEMORY_TOLERANCE_FRACTION` of
    it: a partition of a card, or a card with other memory, reports the same name but is not that row.
    """
    matches = [row for row in devices() if reported in row.device_names]
    if memory_bytes is not None:
        matches = [row for row in matches if abs(row.memory_bytes / memory_bytes - 1) <= MEMORY_TOLERANCE_FRACTION]
    return matches[0] if len(matches) == 1 else None
