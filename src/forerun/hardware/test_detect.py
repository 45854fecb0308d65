import platform
from dataclasses import replace

import pytest

from forerun.errors import NotSupported, UnknownDevice
from forerun.hardware.catalogue import device
from forerun.hardware.detect import (
    NO_NVML,
    CudaReading,
    DetectedDevice,
    Readers,
    detect,
    detect_cpu,
    read_card_names,
)
from forerun.units import GIB, MIB

# Lines of /proc/cpuinfo: a Xeon with AMX (recorded 2026-11), and an older one.
SAPPHIRE = "model name\t: Intel(R) Xeon(R) Processor\nflags\t\t: sse2 avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
HASWELL = "model name\t: Intel(R) Xeon(R) CPU E5-2699 v3\nflags\t\t: fpu sse2 avx avx2\n"


def readers_of(texts: dict[str, str], *, cuda: CudaReading | None = None, affinity: int = 8) -> Readers:
    """A host with 16 physical and 32 logical cores and 64 GiB, of which 50 are free."""
    return Readers(
        text=texts.get,
        affinity=lambda: affinity,
        host=lambda: (16, 32, 64 * GIB, 50 * GIB),
        threads=lambda: 4,
        cuda=lambda: cuda,
        cuda_build=lambda: "13.0" if cuda else None,
        driver_version=lambda: "580.95.05",
        version={"torch": "2.13.0"}.get,
    )


def card(name: str, memory_mib: int, capability: tuple[int, int], sm_count: int) -> CudaReading:
    return CudaReading(
        name=name,
        total_bytes=memory_mib * MIB,
        available_bytes=memory_mib * MIB // 2,
        compute_capability=capability,
        sm_count=sm_count,
        cuda_version="13.0",
    )


T4 = card("Tesla T4", 14930, (7, 5), 40)
A100 = card("NVIDIA A100-SXM4-40GB", 40339, (8, 0), 108)


def test_cpu_without_limits_is_the_host():
    detected = detect(readers=readers_of({"/proc/cpuinfo": HASWELL}))
    assert (detected.kind, detected.device.name, detected.device.kind) == ("cpu", "cpu", "cpu")
    assert detected.device.architecture == platform.machine().lower()
    assert detected.reported_name == "Intel(R) Xeon(R) CPU E5-2699 v3"
    assert detected.device.memory_bytes == detected.memory.total_bytes == 64 * GIB
    assert detected.memory.available_bytes == 50 * GIB
    assert (detected.cores.physical, detected.cores.logical, detected.cores.usable) == (16, 32, 8)
    assert detected.isa_flags == ("avx2",)
    assert not detected.has_bf16
    assert dict(detected.device.peak_flops_per_second) == {}
    assert detected.versions["torch"] == "2.13.0"
    assert "peft" not in detected.versions


def test_cpu_bf16_by_instruction_set():
    detected = detect(readers=readers_of({"/proc/cpuinfo": SAPPHIRE}))
    assert detected.isa_flags == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert detected.has_bf16


CGROUP_V2 = {
    "/proc/self/cgroup": "0::/kubepods/pod1/box\n",
    "/sys/fs/cgroup/kubepods/pod1/box/memory.max": "max\n",
    "/sys/fs/cgroup/kubepods/pod1/memory.max": f"{8 * GIB}\n",
    "/sys/fs/cgroup/kubepods/pod1/memory.current": f"{6 * GIB}\n",
    "/sys/fs/cgroup/kubepods/pod1/memory.stat": f"anon {4 * GIB}\ninactive_file {2 * GIB}\n",
    "/sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
}
CGROUP_V1 = {
    "/proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n",
    "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{8 * GIB}\n",
    "/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{6 * GIB}\n",
    "/sys/fs/cgroup/memory/docker/abc/memory.stat": f"cache {2 * GIB}\ntotal_inactive_file {2 * GIB}\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "250000\n",
    "/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("texts", [CGROUP_V2, CGROUP_V1], ids=["v2", "v1"])
def test_cgroup_limits_of_any_level_bind(texts: dict[str, str]):
    detected = detect(readers=readers_of(texts))
    assert detected.memory.total_bytes == detected.device.memory_bytes == 8 * GIB
    assert detected.memory.available_bytes == 4 * GIB
    assert detected.cores.usable == 2


def test_affinity_binds_below_the_quota_and_one_core_is_the_least():
    assert detect(readers=readers_of(CGROUP_V2, affinity=1)).cores.usable == 1
    half = {**CGROUP_V2, "/sys/fs/cgroup/kubepods/pod1/cpu.max": "50000 100000"}
    assert detect(readers=readers_of(half)).cores.usable == 1


def test_known_card_is_its_row_with_the_memory_of_this_machine():
    detected = detect(readers=readers_of({"/proc/cpuinfo": SAPPHIRE}, cuda=T4))
    assert detected.kind == "cuda"
    assert detected.device.name == "t4"
    assert detected.device.memory_bytes == 14930 * MIB != device("t4").memory_bytes
    assert detected.device.peak_flops_per_second == device("t4").peak_flops_per_second
    assert detected.host_memory.total_bytes == 64 * GIB
    assert (detected.driver_version, detected.cuda_version) == ("580.95.05", "13.0")


def test_bf16_of_a_card_is_its_capability_not_the_cpu_of_its_host():
    assert not detect(readers=readers_of({"/proc/cpuinfo": SAPPHIRE}, cuda=T4)).has_bf16
    assert detect(readers=readers_of({"/proc/cpuinfo": HASWELL}, cuda=A100)).has_bf16


def test_unknown_card_says_what_was_read():
    partition = card("NVIDIA A100 80GB PCIe MIG 1g.10gb", 9728, (8, 0), 14)
    with pytest.raises(UnknownDevice, match=r"MIG 1g\.10gb.*9\.50 GiB, compute capability 8\.0, 14 SMs.*--gpu"):
        detect(readers=readers_of({}, cuda=partition))
    assert detect("cpu", readers=readers_of({}, cuda=partition)).kind == "cpu"


def test_cuda_asked_for_and_absent():
    with pytest.raises(NotSupported, match="forerun doctor"):
        detect("cuda", readers=readers_of({}))


def test_without_nvml_a_note_says_how_to_install_it():
    def missing() -> str | None:
        raise ModuleNotFoundError("pynvml")

    detected = detect(readers=replace(readers_of({}, cuda=A100), driver_version=missing))
    assert detected.driver_version is None
    assert detected.notes == (NO_NVML,)


def test_this_machine_and_the_record_survives_json():
    detected = detect_cpu()
    assert 1 <= detected.cores.usable <= detected.cores.logical
    assert 0 < detected.memory.available_bytes <= detected.memory.total_bytes
    assert detected.threads >= 1
    assert DetectedDevice.model_validate_json(detected.model_dump_json()) == detected


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["NVIDIA H100 80GB HBM3", "Tesla T4"]), ("1", ["Tesla T4"]), ("1,0", ["Tesla T4", "NVIDIA H100 80GB HBM3"]),
        ("", []), ("-1", []), ("7", []), ("GPU-00", ["NVIDIA H100 80GB HBM3", "Tesla T4"]),
    ],
)  # fmt: skip
def test_names_of_the_cards_that_a_process_may_use(visible, names, tmp_path, monkeypatch):
    for place, name in (("0000:01:00.0", "NVIDIA H100 80GB HBM3"), ("0000:02:00.0", "Tesla T4")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 11\nGPU UUID: \t GPU-00\n")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert read_card_names(str(tmp_path)) == names
    assert read_card_names(str(tmp_path / "none")) == []
