"""All stand-ins for packages of CUDA kernels."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from forerun.hardware.catalogue import Device
from forerun.trace import Trace
from forerun.virtual.cuda.stand_ins import apex, flash_attn, flex_attention, liger_models, vllm, xformers
from forerun.virtual.cuda.stand_ins.bitsandbytes import quantizing_without_values
from forerun.virtual.cuda.stand_ins.extensions import virtual_extensions
from forerun.virtual.cuda.stand_ins.packages import importable
from forerun.virtual.cuda.stand_ins.torchvision_operators import operators_of_torchvision
from forerun.virtual.cuda.stand_ins.triton_kernels import virtual_triton
from forerun.virtual.cuda.stand_ins.trl_kernels import folding_in_one_kernel

PACKAGES = (*flash_attn.PACKAGES, *xformers.PACKAGES, *liger_models.PACKAGES, *apex.PACKAGES)


@contextlib.contextmanager
def standing_in(device: Device, trace: Trace, note: Callable[[str, Any], None]) -> Iterator[None]:
    """Let a program import what its card could run, while it runs."""
    flex_attention.register()
    with (
        virtual_triton(device, note),
        virtual_extensions(),
        operators_of_torchvision(),
        importable((*PACKAGES, *vllm.packages(trace, note)), device.compute_capability or (0, 0)),
        vllm.refusing_servers(),
        quantizing_without_values(trace),
        folding_in_one_kernel(),
    ):
        try:
            yield
        finally:
            liger_models.restore()
