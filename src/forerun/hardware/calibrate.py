"""Measure the device at hand and its machine: what `forerun calibrate` does, in under 30 seconds.

The result, a `DeviceCalibration`, is kept in the ledger and replaces stated speeds in later forecasts for this device.
It is recognised by what was measured: a machine that has become a fifth slower than its calibration is told so.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch

from forerun.experience import DeviceCalibration, TimedAttention, TimedProduct
from forerun.hardware import micro_benchmarks as measure
from forerun.hardware.detect import DetectedDevice
from forerun.hardware.host_memory import freed_memory_held
from forerun.units import MIB

CPU_PRODUCTS = (
    (1, 32, 256, 256), (1, 128, 768, 768), (1, 512, 768, 768), (1, 512, 768, 3072), (1, 512, 3072, 768),
    (1, 2048, 384, 1536), (1, 64, 2048, 2048), (1, 4, 768, 30_000), (48, 128, 64, 128), (48, 128, 128, 64),
)  # fmt: skip
"""(batch, m, k, n): of encoders and small language models, for training on a CPU."""
GPU_PRODUCTS = (
    (1, 64, 1024, 1024), (1, 512, 768, 768), (1, 512, 768, 3072), (1, 2048, 768, 3072), (1, 2048, 3072, 768),
    (1, 4096, 4096, 4096), (1, 4096, 4096, 11_008), (1, 4096, 11_008, 4096), (1, 16, 4096, 4096), (1, 128, 4096, 4096),
    (1, 8192, 2048, 2048), (1, 1024, 5120, 5120), (1, 768, 2048, 3072), (1, 8192, 8192, 1024), (1, 2048, 4096, 32_000),
    (96, 512, 64, 512), (96, 512, 512, 64), (32, 128, 64, 128), (1, 333, 1000, 1000), (1, 4096, 64, 4096),
)  # fmt: skip
"""(batch, m, k, n): the 20 that a GPU's own correction is fitted to."""
GPU_COPIES = (4 * MIB, 64 * MIB, 512 * MIB)


def calibrate(
    detected: DetectedDevice, folder: Path, on_progress: Callable[[str], None] = lambda what: None
) -> DeviceCalibration:
    """Measure `detected` here; probe files are removed from `folder`. `on_progress` gets what is measured next."""
    start = time.perf_counter()
    device = torch.device(detected.device.kind)
    is_host = device.type == "cpu"
    with freed_memory_held():
        on_progress("matrix products")
        products = _products(detected, device)
        on_progress("attention")
        attention = _attention(detected, device)
        on_progress("copies")
        copies = {size: measure.copy_speed(device, size) for size in (measure.CPU_COPIES if is_host else GPU_COPIES)}
        on_progress("operators of a small network")
        overhead = measure.step_overhead_seconds(device)
        on_progress("a compiled kernel")
        random, compiling = measure.compiled_random_seconds() if is_host else (None, None)
    on_progress("fresh memory")
    fresh = measure.fresh_page_seconds() if is_host else 0.0
    on_progress("disk")
    write_speed, read_speed = measure.disk_speed(folder)
    on_progress("tokenising")
    tokenised = measure.tokenising_speed()
    on_progress("start of a process")
    return DeviceCalibration(
        gpu=detected.device.name,
        device_name=detected.reported_name,
        threads=torch.get_num_threads(),
        products=products,
        attention=attention,
        copy_bytes_per_second=copies,
        fresh_page_seconds_per_byte=fresh,
        operator_host_seconds=overhead,
        compiled_random_seconds=random,
        compile_seconds=compiling,
        disk_write_bytes_per_second=write_speed,
        disk_read_bytes_per_second=read_speed,
        tokenised_bytes_per_second=tokenised,
        import_seconds=measure.import_seconds(),
        took_seconds=time.perf_counter() - start,
        versions={"torch": version("torch")},
    )


def _dtypes(detected: DetectedDevice) -> list[str]:
    half = ["bfloat16"] if detected.device.has_bf16 else []
    return ["float32", *half] if detected.device.kind == "cpu" else ["float32", "float16", *half]


def _products(detected: DetectedDevice, device: torch.device) -> list[TimedProduct]:
    shapes = CPU_PRODUCTS if device.type == "cpu" else GPU_PRODUCTS
    # "float32" and "tfloat32" have peaks of their own; with TF32 allowed the first would be timed as the second
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return [measure.time_product(device, dtype, *shape) for dtype in _dtypes(detected) for shape in shapes]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _attention(detected: DetectedDevice, device: torch.device) -> list[TimedAttention]:
    shapes = ((4, 12, 128, 64), (1, 8, 512, 64)) if device.type == "cpu" else ((8, 12, 512, 64), (2, 32, 2048, 128))
    return [measure.time_attention(device, dtype, *shape) for dtype in _dtypes(detected)[-1:] for shape in shapes]
