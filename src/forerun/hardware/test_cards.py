"""Properties of every row of the catalogue, those that a rule made included; each failure names its row."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.hardware.catalogue import FILES, Device, device, device_of_name_string, devices
from forerun.units import GIB, GIGA, MIB, TERA

ROWS = devices()
WHOLE = [row for row in ROWS if row.segment != "slice"]
NVIDIA = [row for row in WHOLE if not row.is_amd]
SOURCES = {
    "memory_bytes", "bandwidth_bytes_per_second", "host_link_bytes_per_second", "peak_flops_per_second", "sm_count",
    "l2_bytes", "context_bytes", "device_names",
}  # fmt: skip
FOLDER = Path(__file__).with_name("cards")


def failing(rows: list[Device], holds: Callable[[Device], bool]) -> list[str]:
    return [row.name for row in rows if not holds(row)]


def test_there_are_more_than_a_hundred_and_the_files_are_all_read():
    assert len(ROWS) >= 150
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(FILES)


def test_every_number_has_a_source_and_no_other_field_has():
    def sourced(row: Device) -> bool:
        power = {"board_watts"} if row.board_watts is not None else set()
        capability = {"compute_capability"} if row.compute_capability is not None else set()
        return set(row.sources) == SOURCES | power | capability and all(len(t) > 15 for t in row.sources.values())

    assert failing(ROWS, sourced) == []


def test_sources_are_texts_and_not_keys():
    keys = set(tomllib.loads((FOLDER / "sources.toml").read_text())["source"])
    used = {text.partition(";")[0] for row in ROWS for text in row.sources.values()}
    assert not used & keys
    assert not [text for text in used if text.startswith("derived-")]


def test_what_cuda_reports_is_less_than_the_box_and_close_to_it():
    def plausible(row: Device) -> bool:
        return row.box_gib is None or 0.9 <= row.memory_bytes / (row.box_gib * GIB) < 1

    assert failing([row for row in WHOLE if row.name != "b300" and row.name != "gb300"], plausible) == []


def test_peaks_are_multiprocessors_x_clock_x_a_rate_of_the_architecture():
    """Dense float16 of one multiprocessor in one cycle: a power of two of the capability, halved where boards are cut."""
    rates = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192,
             (10, 3): 8192, (12, 0): 1024, (12, 1): 1024}  # fmt: skip

    def agrees(row: Device) -> bool:
        rate = row.peak("float16") / ((row.sm_count or 1) * row.boost_clock_hertz)
        full = rates[row.compute_capability or (0, 0)]
        return any(
            abs(rate / whole - 1) < 0.14 for whole in (full, full / 2)
        )  # Hopper's vendor rates: up to 13.5 % less

    tensor = [row for row in ROWS if not row.is_amd and row.has_tensor_cores and row.name not in {"h20", "h20-141gb"}]
    assert failing(tensor, agrees) == []
    assert device("h20").peak("float16") < 0.3 * device("h100-80gb").peak("float16"), "cut for export"
    assert device("h20-141gb").peak("float16") == device("h20").peak("float16")


def test_before_tensor_cores_16_bits_are_no_faster_and_bf16_is_missing():
    old = [row for row in NVIDIA if (row.compute_capability or (9, 0)) < (7, 0) or row.name.startswith("gtx")]
    assert len(old) >= 18
    assert failing(old, lambda row: not row.has_tensor_cores and not row.has_bf16) == []
    assert failing(old, lambda row: row.peak("float16") <= row.peak("float32")) == []
    slow = [row for row in old if row.compute_capability == (7, 5)]
    assert failing(slow, lambda row: row.peak("float16") < 0.12 * row.peak("float32")) == [], "as measured"


def test_formats_follow_the_capability():
    def agrees(row: Device) -> bool:
        capability, peaks = row.compute_capability or (0, 0), row.peak_flops_per_second
        return (
            ("bfloat16" in peaks) == row.has_bf16 == (capability >= (8, 0))
            and ("tfloat32" in peaks) == (capability >= (8, 0))
            and ("float8" in peaks) == (capability >= (8, 9))
        )

    assert failing([row for row in ROWS if not row.is_amd], agrees) == []


def test_cards_of_one_chip_have_one_ratio_of_formats():
    """GeForce boards of one capability keep one ratio of float16 to float32, others another."""
    by_kind: dict[tuple[object, ...], set[float]] = {}
    for row in NVIDIA:
        if row.title and row.has_tensor_cores and row.compute_capability is not None and row.compute_capability[0] < 9:
            ratio = round(row.peak("float16") / row.peak("float32"))
            by_kind.setdefault(
                (row.compute_capability, row.title.startswith("GeForce"), row.name in ("l40", "l20")), set()
            ).add(ratio)
    assert all(len(ratios) == 1 for ratios in by_kind.values()), by_kind


def test_a_slice_is_a_part_of_its_card():
    def is_part(row: Device) -> bool:
        card = device(row.slice_of or "")
        smaller = row.memory_bytes < 0.56 * card.memory_bytes and (row.sm_count or 0) <= 0.6 * (card.sm_count or 0)
        return (
            smaller and row.compute_capability == card.compute_capability and row.peak("float16") < card.peak("float16")
        )

    slices = [row for row in ROWS if row.segment == "slice"]
    assert {row.slice_of for row in slices} == {
        "a100-40gb", "a100-80gb", "a30", "h100-80gb", "h100-nvl", "h200", "gh200-144gb",
        "b200", "gb200", "rtx-pro-6000",
    }  # fmt: skip
    assert failing(slices, is_part) == []


def test_numbers_are_those_of_some_card():
    def plausible(row: Device) -> bool:
        return (
            90 * GIGA <= (row.bandwidth_bytes_per_second or 0) <= 8_200 * GIGA
            and 4 <= row.peak("float32") / TERA <= 170
            and 10 <= (row.sm_count or 0) <= 304
            and 900e6 <= row.boost_clock_hertz <= 3e9
            and 100 * MIB < row.context_bytes.optimistic <= row.context_bytes.conservative < 1.2 * GIB
            and (row.board_watts is None or 40 <= row.board_watts <= 1400)
        )

    assert failing(WHOLE, plausible) == []


def test_every_string_of_a_driver_reaches_its_row_by_its_memory():
    def reached(row: Device) -> bool:
        return all(device_of_name_string(text, row.memory_bytes) == row for text in row.device_names)

    twins = {"b300", "gb300"}  # names differ
    assert failing([row for row in ROWS if row.name not in twins], reached) == []
    assert device_of_name_string("NVIDIA GeForce RTX 3080") is None, "two cards have this name"
    assert device_of_name_string("NVIDIA GeForce RTX 3080", 10_002 * MIB) == device("rtx-3080-10gb")
    assert device_of_name_string("NVIDIA A100-SXM4-40GB MIG 1g.10gb", 9_856 * MIB) == device("a100-40gb-1g.10gb")


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "float16"),
    # NVIDIA's own dense rates with float32 accumulation, from general knowledge of the named document; TFLOP/s, 1 %.
    [
        ("rtx-2080-ti", 53.8), ("titan-rtx", 130.5),  # Turing whitepaper, appendix A and B
        ("rtx-3080-10gb", 59.5), ("rtx-a5000", 111.1), ("a30", 165), ("a2", 18),  # GA102 whitepaper; datasheets
        ("rtx-4080", 97.5), ("rtx-6000-ada", 364.2), ("l40", 181.05), ("l20", 119.5),  # Ada whitepaper; datasheets
        ("rtx-5080", 112.6), ("rtx-pro-6000", 503.8),  # RTX Blackwell and RTX PRO whitepapers
    ],
)  # fmt: skip
def test_derived_peaks_are_those_that_were_published(name: str, float16: float):
    assert device(name).peak("float16") / TERA == pytest.approx(float16, rel=0.01)


@pytest.mark.parametrize(
    ("name", "mebibytes", "processors"),
    [("gh200-144gb", 145_920, 132), ("h100-nvl-1g.12gb", 10.75 * 1024 - 128, 16), ("h200-3g.71gb", 69.5 * 1024 - 128, 60),
     ("b200-1g.45gb", 44.25 * 1024 - 128, 30), ("rtx-pro-6000-1g.24gb", 23.12 * 1024 - 128, 46)],
)  # fmt: skip
def test_what_drivers_print_is_what_the_row_has(name: str, mebibytes: float, processors: int):
    """cuDeviceTotalMem and nvidia-smi mig -lgip, as the rows' sources name them."""
    row = device(name)
    assert row.memory_bytes / MIB == pytest.approx(mebibytes, abs=0.5)
    assert row.sm_count == processors
