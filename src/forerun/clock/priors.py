"""How long operators take on a GPU, from coefficients fitted to published timings of operators.

Matrix products by `products.py`; attention by the share of peak that FlashAttention-2 reaches; everything else by bytes
at the share of bandwidth that elementwise operators reach. A GPU that was measured, or whose architecture was, takes
its own coefficients; every other takes the middle of those measured. The forecast says which.

Not covered: power limits of long runs, kernels that differ from one library version to the next.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.clock.costs import (
    ATTENTION,
    COMPILED_HOST_SECONDS,
    EFFICIENT_SHARE_OF_FLASH,
    HALF_CAUSAL,
    KERNEL_SECONDS,
    OPERATOR_HOST_SECONDS,
    VIEW_HOST_SECONDS,
)
from forerun.clock.products import Chip, ProductPrior, Products
from forerun.experience import DeviceCalibration
from forerun.hardware.catalogue import Device, devices
from forerun.trace import BETWEEN_RANKS, Call, TensorSpec
from forerun.units import GIGA, MICRO

OPERANDS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_int_mm": (0, 1)}
"""Positions of the two operands among the arguments of a product."""
BACKWARD_SHARE = 0.86
"""Backward over forward share of peak: 63 % against 73 % (Dao 2023, arXiv:2307.08691, section 4.1)."""
HOPPER_SHARE = 0.35 / 0.7
"""FlashAttention-2 reaches 35 % of an H100's peak (Shah et al. 2024, arXiv:2407.08608, abstract), 70 % of an A100's."""
COLLECTIVES = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}
"""Parts of operator names, and what the coefficient file calls them."""
CONVOLUTION_SHARE = {"simt": (0.56, 0.46), "tensor": (0.29, 0.2)}
"""Share of peak, forward and backward: middle of 14,714 FP32 convolutions forward (NeuSight: A100 0.56, V100 0.60, T4
0.51), and of DeepBench's on V100 and T4, FP32 backward (0.32 to 0.61) and FP16 (0.27 to 0.31; backward 0.15 to 0.23).
Single ones are 40 to 50 % off: cuDNN chooses among algorithms that need different work."""
ROWS = 128
"""Query rows of one block of FlashAttention."""
OTHER_PRODUCT_SHARE = 0.6
"""Share of peak of products that are neither of the above (grouped, int8 of bitsandbytes); stated."""


ALONE = frozenset({"t4"})
"""Measured GPUs that are no example for others of their architecture: this one's 70 W hold its tensor cores back."""


@cache
def table() -> dict[str, Any]:
    """The coefficient file."""
    return json.loads(files("forerun.clock").joinpath("priors.json").read_text(encoding="utf-8"))


@cache
def _products(kind: str) -> ProductPrior:
    return ProductPrior.read(table()["products"][kind])


def measured_like(gpu: Device, names: list[str]) -> str | None:
    """Name of a measured GPU: this one, else the nearest in multiprocessors of its architecture; or None."""
    if gpu.name in names:
        return gpu.name
    rows = {row.name: row for row in devices()}
    alike = [rows[n] for n in names if n in rows and rows[n].compute_capability == gpu.compute_capability]
    if not alike:
        return None
    return min(alike, key=lambda row: abs((row.sm_count or 0) - (gpu.sm_count or 0))).name


@dataclass(frozen=True)
class PriorCosts:
    """Costs of a GPU of the catalogue."""

    device: Device
    tf32: bool = False
    world_size: int = 1
    calibration: DeviceCalibration | None = None
    """Measurements of this very device; its products, copies and host time replace what was fitted to others."""
    is_host: bool = False
    _seconds_by_call: dict[Call, float] = field(default_factory=dict, compare=False)
    _leans: dict[str, NDArray[np.float64]] = field(default_factory=dict, compare=False)

    @property
    def evidence(self) -> str:
        """ "measured", "architecture" or "unseen": whose products the coefficients come from."""
        if self.calibration is not None:
            return "measured"
        like = self._like(table()["products"]["tensor"]["lean"])
        return "measured" if like == self.device.name else "architecture" if like else "unseen"

    @property
    def description(self) -> str:
        """Where the rates come from, for the reader of a forecast."""
        if self.calibration is not None:
            return "fitted to published timings of operators, calibrated on this device"
        whose = {"measured": "this GPU", "architecture": "a GPU of its architecture", "unseen": "other GPUs"}
        return f"fitted to published timings of operators on {whose[self.evidence]}, not calibrated here"

    def host_seconds(self, call: Call) -> float:
        """Time to issue the call: a replayed CUDA graph issues nothing."""
        if call.issuer == "graph":
            return 0.0
        if call.issuer == "compiled":
            return 0.0 if call.is_view else COMPILED_HOST_SECONDS
        if self.calibration is not None:
            measured = self.calibration.operator_host_seconds
            return measured * VIEW_HOST_SECONDS / OPERATOR_HOST_SECONDS if call.is_view else measured
        return VIEW_HOST_SECONDS if call.is_view else OPERATOR_HOST_SECONDS

    def device_seconds(self, call: Call) -> float:
        """Seconds of the kernels of one call.

        Raises:
            MissingPeak: the device has no peak for the dtype of the product.
        """
        if call.is_view:
            return 0.0
        if call not in self._seconds_by_call:
            self._seconds_by_call[call] = self._seconds(call)
        return self._seconds_by_call[call]

    @property
    def knows_ranks(self) -> bool:
        """Whether collectives among so many ranks were measured on such a GPU."""
        return self.world_size == 1 or self._links("all_reduce") is not None

    def _links(self, operator: str) -> list[float] | None:
        """Start (microseconds) and GB/s of a collective; measured for two, four and eight ranks in one machine."""
        if "pcie" in self.device.name:  # the measured ones of its architecture have NVLink
            return None
        measured = table()["collectives"].get(measured_like(self.device, list(table()["collectives"])) or "", {})
        sizes = sorted(int(n) for n in measured.get(operator, {}))
        fitting = next((n for n in sizes if n >= self.world_size), None)
        return None if fitting is None else measured[operator][str(fitting)]

    def _collective(self, call: Call) -> float:
        operator = next((name for part, name in COLLECTIVES.items() if part in call.name), "all_reduce")
        links = self._links(operator)
        if links is None:
            return 0.0
        message = max(spec.bytes for spec in (*call.inputs, *call.outputs))
        # A ring passes (n - 1) / n of the message through each link, twice to reduce it and spread the result.
        times = 2 if operator == "all_reduce" else 1
        moved_bytes = times * message * (self.world_size - 1) / self.world_size
        return links[0] * MICRO + moved_bytes / (links[1] * GIGA)

    def _seconds(self, call: Call) -> float:
        if call.name.startswith(BETWEEN_RANKS):
            return self._collective(call)
        moving = KERNEL_SECONDS + self._from_memory(call) / (self._bandwidth() * self._share())
        if not call.flops:
            return moving
        operator = call.name.split(".")[1]
        if operator in OPERANDS:
            return self._product(call, operator)
        if any(kernel in call.name for kernel in ATTENTION):
            return max(moving, self._attention(call))
        dtype = self._dtype(call)
        if dtype == "int8" and dtype not in self.device.peak_flops_per_second:  # before Turing: no such tensor cores
            dtype = "float16"
        share = OTHER_PRODUCT_SHARE
        if "convolution" in operator:
            share = CONVOLUTION_SHARE["simt" if dtype == "float32" else "tensor"]["backward" in operator]
        return max(moving, KERNEL_SECONDS + call.flops / (self.device.peak(dtype) * share))

    def _from_memory(self, call: Call) -> float:
        """Bytes that pass through memory: what a kernel reads was written shortly before, and is in L2 if small."""
        moved_bytes = call.bytes_read + call.bytes_written
        cached_share = max(0.0, 1 - moved_bytes / (self.device.l2_bytes or 1))
        return call.bytes_written + call.bytes_read * (1 - cached_share)

    def _bandwidth(self) -> float:
        if self.device.bandwidth_bytes_per_second is None:
            raise ValueError(f"{self.device.name} has no datasheet bandwidth")
        return self.device.bandwidth_bytes_per_second

    def _share(self) -> float:
        """Share of the bandwidth that elementwise operators reach."""
        if self.calibration is not None:
            return self.calibration.memory_bytes_per_second / self._bandwidth()
        return self._coefficients("elementwise")[0]

    def _coefficients(self, kind: str) -> list[float]:
        entry = table()[kind]
        like = measured_like(self.device, list(entry["devices"]))
        return entry["devices"][like] if like else entry["unseen"]

    def _dtype(self, call: Call) -> str:
        floating = [spec.dtype for spec in call.inputs if "float" in spec.dtype]
        dtype = floating[0] if floating else call.inputs[0].dtype if call.inputs else "float32"
        return "tfloat32" if dtype == "float32" and self.tf32 else dtype

    def _product(self, call: Call, operator: str) -> float:
        left, right = (call.arguments[i] for i in OPERANDS[operator])
        dtype = self._dtype(call)
        kind = "simt" if dtype == "float32" else "tensor"
        width = left.bytes / max(1, _elements(left))
        batch = left.shape[0] if len(left.shape) == 3 else 1
        shape = [np.array([float(v)]) for v in (batch, left.shape[-2], right.shape[-1], left.shape[-1])]
        prior, chip = _products(kind), self._chip(dtype)
        return float(prior.seconds(chip, Products(*shape, width=width), self._lean(prior, dtype))[0])

    def _chip(self, dtype: str) -> Chip:
        gpu = self.device
        count, l2, clock = gpu.sm_count or 1, gpu.l2_bytes or 1, gpu.boost_clock_hertz
        return Chip(gpu.peak(dtype), self._bandwidth(), count, l2, clock)

    def _like(self, leans: Mapping[str, Any]) -> str | None:
        """Name of the GPU whose measured products stand for this one's; None without any."""
        mine = self.device.name
        return measured_like(self.device, [name for name in leans if name == mine or name not in ALONE])

    def _lean(self, prior: ProductPrior, dtype: str) -> NDArray[np.float64] | None:
        timed = [p for p in self.calibration.products if p.dtype == dtype] if self.calibration is not None else []
        like = prior.lean.get(self._like(prior.lean) or "")
        if not timed:
            return like
        if dtype not in self._leans:
            columns = (np.array([float(getattr(p, name)) for p in timed]) for name in ("batch", "m", "n", "k"))
            products = Products(*columns, width=4.0 if dtype == "float32" else 2.0)
            self._leans[dtype] = prior.learn(self._chip(dtype), products, np.array([p.seconds for p in timed]), like)
        return self._leans[dtype]

    def _attention(self, call: Call) -> float:
        """FLOP that the kernel executes (causal ones skip half) at the share of peak that it reaches."""
        length, blocks = _length_and_blocks(call)
        most, half_length, half_wave, start = self._coefficients("attention")
        waves = blocks / (self.device.sm_count or 1)
        share = most * length / (length + half_length) * waves / (waves + half_wave)
        if (self.device.compute_capability or (0, 0))[0] == 9:
            share *= HOPPER_SHARE
        if "backward" in call.name:
            share *= BACKWARD_SHARE
        if "efficient" in call.name:
            share *= EFFICIENT_SHARE_OF_FLASH
        # The first truth value is `is_causal` in flash's schemas, but `compute_log_sumexp` in that of cuDNN's forward
        # pass (ATen/ops/_scaled_dot_product_cudnn_attention_ops.h, 2.13): in training that counts as causal.
        is_causal = True in [a for a in call.arguments if isinstance(a, bool)][:1]
        skips_half = is_causal and any(kernel in call.name for kernel in HALF_CAUSAL)
        flops = call.flops / 2 if skips_half else call.flops
        return start * MICRO + flops / (self.device.peak(self._dtype(call)) * share)


def _length_and_blocks(call: Call) -> tuple[float, float]:
    """Keys that a token of an attention call meets, and blocks of 128 rows that are computed side by side."""
    query = next(a for a in call.arguments if isinstance(a, TensorSpec) and len(a.shape) in (3, 4))
    if len(query.shape) == 4:
        batch, heads, length, _ = query.shape
        return length, batch * heads * -(-length // ROWS)
    tokens, heads, size = query.shape  # documents laid end to end, with the offset of each
    offsets = next(a for a in call.arguments if isinstance(a, TensorSpec) and a.dtype == "int32")
    documents = offsets.shape[0] - 1
    products = 5 if "backward" in call.name else 2
    keys_per_token = call.flops / (products * 2 * tokens * heads * size)
    return keys_per_token, heads * documents * math.ceil(tokens / documents / ROWS)


def _elements(spec: TensorSpec) -> int:
    count = 1
    for length in spec.shape:
        count *= length
    return count
