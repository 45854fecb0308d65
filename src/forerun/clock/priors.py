"""How long operators take on a GPU, from coefficients fitted to published timings of operators.

Matrix products by `products.py`; attention by the share of peak that FlashAttention reaches; everything else by bytes
at the share of bandwidth that elementwise operators reach. A GPU that was measured, or whose architecture was, takes
its own coefficients; every other takes the middle of those measured. The forecast says which.

Not covered: kernels that differ from one library version to the next.
"""

import json
import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.clock import issuing, memory_kernels, recurrent
from forerun.clock.alignment import unaligned_seconds
from forerun.clock.alike import example_of, has_half_rate, passing_memory_like
from forerun.clock.attention_calls import has_diagonal, is_causal, length_and_blocks, query_of
from forerun.clock.between_ranks import STREAMING_BLOCKS, Job, between_cards, job_of
from forerun.clock.convolutions import CONVOLUTIONS, DENSE, ConvolutionModel, Parts
from forerun.clock.costs import (
    ATTENTION,
    EFFICIENT_SHARE_OF_FLASH,
    HALF_CAUSAL,
    KERNEL_SECONDS,
    attention_peak,
    factors_dtype,
)
from forerun.clock.image_layers import image_layer_parts, native_norm_seconds
from forerun.clock.power import sustained_share
from forerun.clock.products import Chip, ProductPrior, Products
from forerun.experience import DeviceCalibration
from forerun.hardware.catalogue import REAL_DTYPES, Device
from forerun.network.algorithms import Kind, Layout
from forerun.network.catalogue import Network
from forerun.network.collective import CollectivePrice
from forerun.trace import BESIDE_HOST, BETWEEN_RANKS, CARD_BYTES, HOST_BYTES, Call, TensorSpec, Trace
from forerun.units import GIGA, MICRO

OPERANDS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "_int_mm": (0, 1), "_scaled_mm": (0, 1)}
"""Positions of the two operands among the arguments of a product."""
BACKWARD_SHARE = {10: 0.82}
"""By major capability, backward over forward share of peak where it is not `BACKWARD_ELSEWHERE`: 336 of 411, 363 of 444
and 368 of 448 TFLOP/s on a B200, GB200 and GB300 (NVIDIA/cudnn-frontend; benchmarks/priors/flash_attention_2.py)."""
BACKWARD_ELSEWHERE = 0.86
"""63 % against 73 % (Dao 2023, arXiv:2307.08691, section 4.1)."""
OLDER_SHARE = {9: 0.35 / 0.7}
"""By major capability, what kernels written for Ampere reach of the share that they have there. FlashAttention-2
reaches 35 % of an H100's peak (Shah et al. 2024, arXiv:2407.08608, abstract), 70 % of an A100's."""
OF_BLACKWELL = "attention_blackwell"
"""Curves of kernels written for Ampere on data-centre Blackwell (benchmarks/priors/flash_attention_2.py)."""
OF_ROCM = "attention_rocm"
"""Curves of PyTorch's fused kernels on AMD's data-centre GPUs (benchmarks/priors/rocm.py)."""
ROCM_BACKWARD_SHARE = 0.38
"""The same ratio of PyTorch's kernels there: 0.81 of AMD's own on an MI300X (AMD-AGI/Primus-Turbo 221d75f1), which cut
their latency by 47 % forward and 75 % backward (rocm.blogs.amd.com, Deep Dive into Primus, 2026-01-15)."""
HEAD_ROUNDING = 32
"""Attention kernels are compiled for heads of multiples of this (`headdim_switch`, FlashAttention 2); zeros fill up."""
CUDNN_IS_NATIVE = (9, 10)
"""Major capabilities for which cuDNN's attention is no older kernel, with curves of its own
(benchmarks/priors/cudnn_attention.py). Heads of 256 reach what heads of 128 do: 0.85 of FlashAttention-3's, 0.94 of it
there (Shah et al. 2024, arXiv:2407.08608, figures 5 and 6, forward). Of a mask that is read nobody shows the cost."""
WIDE_HEAD = 128
"""Head size beyond which the length at which half of a kernel's share is reached stays the same (priors/fit.py)."""
HOST_LINK_SHARE = 0.78
"""Share of the link's stated rate that copies from pinned memory reach: 5.8 and 6.5 of PCIe 2.0's 8 GB/s, bandwidthTest
on a GTX TITAN Black (github.com/ComputationalRadiationPhysics/jungfrau-photoncounter, issue 18). Pageable: less."""
HOST_MEMORY_BYTES_PER_SECOND = 100 * GIGA
"""Memory of the host under an optimizer's update; stated, and told in the forecast where it counts."""
OTHER_PRODUCT_SHARE = 0.6
"""Share of peak of products that are neither of the above (grouped, int8 of bitsandbytes); stated."""
FLOAT8_PRODUCT_SHARE = 0.4
"""The same of grouped products in float8; stated. Single ones with the width of experts (768 to 4,096 columns and inner
length) reach 0.16 to 0.42 of it on H100 and B200, casts included (AIConfigurator, vLLM 0.24)."""


PARTITIONED = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities whose L2 is two partitions, each of which caches what the multiprocessors beside it ask for
(white papers "NVIDIA A100 Tensor Core GPU Architecture", 2020, and of H100, 2022; a B200 is two dies)."""
FRESH_SHARE = 0.7
"""Share of what kernels read that was written just before; the rest, such as saved activations, comes from memory.
Fitted to eager attention benchmarks and LoRA on an L40S, whose L2 holds 96 MiB."""
OVERWRITTEN_SHARE = 0.5
"""Share of what kernels write that is overwritten, in the same block of memory, before it leaves L2: the allocator
gives out again what was freed last. Fitted to the attention benchmarks as `FRESH_SHARE` was."""


@cache
def table() -> dict[str, Any]:
    """The coefficient file."""
    return json.loads(files("forerun.clock").joinpath("priors.json").read_text(encoding="utf-8"))


@cache
def _products(kind: str) -> ProductPrior:
    return ProductPrior.read(table()["products"][kind])


@dataclass(frozen=True)
class PriorCosts:
    """Costs of a GPU of the catalogue."""

    device: Device
    tf32: bool = False
    tf32_convolutions: bool = True
    world_size: int = 1
    calibration: DeviceCalibration | None = None
    """Measurements of this very device; its products, copies and host time replace what was fitted to others."""
    is_host: bool = False
    job: Job | None = None
    """The machines of several ranks; None takes those that are usual for the GPU."""
    _seconds_by_call: dict[Call, float] = field(default_factory=dict, compare=False)
    _leans: dict[str, NDArray[np.float64]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, trace: Trace, device: Device, **more: Any) -> "PriorCosts":
        """Costs of a GPU for a program as it set PyTorch's switches; `more` are the other fields."""
        return cls(device, tf32=trace.tf32, tf32_convolutions=trace.tf32_convolutions, **more)

    @property
    def evidence(self) -> str:
        """ "measured", "architecture" or "unseen": how wide the range of time is, by whose products were timed."""
        if self.calibration is not None:
            return "measured"
        return "unseen" if self.device.is_amd else self._whose  # of AMD one step was compared, whatever was timed

    @property
    def _whose(self) -> str:
        """The same, by whose products the coefficients come from."""
        like = example_of(self.device, table()["products"]["tensor"]["lean"])
        return "measured" if like == self.device.name else "architecture" if like else "unseen"

    @property
    def description(self) -> str:
        """Where the rates come from, for the reader of a forecast."""
        if self.calibration is not None:
            return "fitted to published timings of operators, calibrated on this device"
        whose = {"measured": "this GPU", "architecture": "a GPU of its architecture", "unseen": "other GPUs"}
        return f"fitted to published timings of operators on {whose[self._whose]}, not calibrated here"

    def host_seconds(self, call: Call) -> float:
        """Time to issue the call, on the host that was measured or the assumed one."""
        return issuing.host_seconds(call, self.calibration and self.calibration.operator_host_seconds)

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
        """Whether the links between GPUs of this name are known."""
        return self.world_size == 1 or self._job is not None

    @cached_property
    def _job(self) -> Job | None:
        return job_of(self.device, self.world_size) if self.job is None else self.job

    @property
    def gpus_per_machine(self) -> int:
        """GPUs of each machine of the job."""
        return 1 if self._job is None else self._job.cluster.gpus_per_machine

    @property
    def communication_share(self) -> float:
        """Share of the multiprocessors that NCCL's kernels hold while they run beside others."""
        return 0.0 if self._job is None else min(0.5, STREAMING_BLOCKS / (self.device.sm_count or STREAMING_BLOCKS))

    @property
    def collective_prices(self) -> dict[tuple[Kind, Layout], CollectivePrice]:
        """The dearest collective of each kind and layout that was priced."""
        return {} if self._job is None else self._job.prices

    @property
    def network(self) -> Network | None:
        """What joins the job's machines, where nobody named it."""
        return self._job.cluster.network if self._job is not None and self._job.network_is_assumed else None

    def _seconds(self, call: Call) -> float:
        if call.name.startswith(BETWEEN_RANKS):
            return 0.0 if self._job is None else self._job.price(call).seconds
        if CARD_BYTES in (keywords := dict(call.keywords)):
            return KERNEL_SECONDS + self._between_cards(keywords[CARD_BYTES][1])
        if call.name.startswith(BESIDE_HOST) or HOST_BYTES in dict(call.keywords):
            return self._beside_host(call)
        operator = call.name.split(".")[1]
        if operator in CONVOLUTIONS and call.flops:
            return self._weighted(self.convolutions(self._convolution_dtype(call)).parts(call))
        bandwidth = self._bandwidth() * self._share()
        native = native_norm_seconds(call, bandwidth, self.device.sm_count or 1, self.device.boost_clock_hertz)
        if native is not None:
            return native
        parts = image_layer_parts(call, self._bandwidth())
        if parts is not None:
            return self._weighted(parts)
        moving = self._moving(call)
        if not call.flops:
            return moving
        product = operator.removesuffix("_")  # or in place
        if product in OPERANDS:
            return self._product(call, product)
        if call.name.startswith(recurrent.OPERATOR):
            dtype = self._dtype(call)
            return recurrent.recurrent_seconds(
                call, lambda *shape: self._products(shape, dtype), self._bandwidth() * self._share()
            )
        if any(kernel in call.name for kernel in ATTENTION):
            return max(moving, self._attention(call))
        dtype = self._dtype(call)
        if dtype == "int8" and dtype not in self.device.peak_flops_per_second:  # before Turing: no such tensor cores
            dtype = "float16"
        share = FLOAT8_PRODUCT_SHARE if dtype.startswith("float8") else OTHER_PRODUCT_SHARE
        return max(moving, KERNEL_SECONDS + call.flops / (self.device.peak(dtype) * share))

    def _between_cards(self, size: int) -> float:
        """Seconds of a copy of `size` bytes between two cards of the machine; over the host where no link is known."""
        linked = between_cards(self.device, size)
        link = (self.device.host_link_bytes_per_second or self._bandwidth()) * HOST_LINK_SHARE
        return 2 * size / link if linked is None else linked

    def _beside_host(self, call: Call) -> float:
        """Seconds of a copy over the link to the host, or of an update on the host whose result comes back over it."""
        link = (self.device.host_link_bytes_per_second or self._bandwidth()) * HOST_LINK_SHARE
        if call.name == "forerun.update_on_host_.default":  # of one parameter, while another's result is copied
            parameter, bytes_per_element = call.arguments
            updating = elements_of(parameter) * bytes_per_element / HOST_MEMORY_BYTES_PER_SECOND
            return max(updating, parameter.bytes / link)
        carried = dict(call.keywords).get(HOST_BYTES) or sum(spec.bytes for spec in call.inputs)
        return KERNEL_SECONDS + carried / link

    def _moving(self, call: Call) -> float:
        """Seconds of what a call reads and writes."""
        one_pass = self._from_memory(call) / (self._bandwidth() * self._share())
        clocks = (self.device.sm_count or 1) * self.device.boost_clock_hertz
        return KERNEL_SECONDS + memory_kernels.memory_seconds(call, one_pass, clocks, table()["memory_kernels"])

    def _from_memory(self, call: Call) -> float:
        """Bytes that pass through memory: some of what a kernel reads is in L2, some of what it writes never leaves it.

        While it writes its results, what was least recently used leaves L2, before the kernel has come to read it.
        """
        read = memory_kernels.bytes_read(call)
        cached_share = min(1.0, max(0.0, (self._cache_bytes() - read) / (call.bytes_written or 1)))
        from_results = call.bytes_written * (1 - OVERWRITTEN_SHARE * cached_share)
        return from_results + read * (1 - FRESH_SHARE * cached_share)

    def _cache_bytes(self) -> float:
        """Bytes of L2 that hold different data: two partitions may both hold what both read."""
        cache = self.device.l2_bytes or 0
        return cache / 2 if self.device.compute_capability in PARTITIONED else cache

    def _bandwidth(self) -> float:
        if self.device.bandwidth_bytes_per_second is None:
            raise ValueError(f"{self.device.name} has no datasheet bandwidth")
        return self.device.bandwidth_bytes_per_second

    def _share(self) -> float:
        """Share of the bandwidth that elementwise operators reach."""
        if self.calibration is not None:
            return self.calibration.memory_bytes_per_second / self._bandwidth()
        entry = table()["elementwise"]
        like = passing_memory_like(self.device, entry["devices"])
        usual = entry["inline_ecc" if self.device.inline_ecc else "unseen"]
        return (entry["devices"][like] if like else usual)[0]

    def _coefficients(self, kind: str) -> list[float]:
        entry = table()[kind]
        like = example_of(self.device, entry["devices"], "float16")
        return entry["devices"][like] if like else entry["unseen"]

    def _dtype(self, call: Call) -> str:
        dtype = factors_dtype(call)
        dtype = REAL_DTYPES.get(dtype, dtype)
        return self.device.product_dtype(dtype, tf32=self.tf32)

    def _product(self, call: Call, operator: str) -> float:
        left, right = (call.arguments[i] for i in OPERANDS[operator])
        width = left.bytes / max(1, elements_of(left))
        batch = left.shape[0] if len(left.shape) == 3 else 1
        m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
        dtype = str(REAL_DTYPES.get(left.dtype, left.dtype))  # a sum may be wider than its factors
        if dtype != left.dtype:  # as a real product of matrices whose rows hold both parts
            m, k, width = 2 * m, 2 * k, width / 2
        seconds = self._products((batch, m, n, k), self.device.product_dtype(dtype, tf32=self.tf32), width)
        return max(seconds, unaligned_seconds(call, (left, right, *call.outputs), self.device))

    def _products(self, shape: tuple[int, ...], dtype: str, width: float | None = None) -> float:
        """Seconds of a batch of m × k by k × n; `width` is the bytes of a value where they are not those of `dtype`."""
        prior, chip = _products("tensor" if self._on_tensor_cores(dtype) else "simt"), self._chip(dtype)
        columns = [np.array([float(v)]) for v in shape]
        width = (4.0 if dtype in ("float32", "tfloat32") else 2.0) if width is None else width
        products = Products(*columns, width=width)
        burst = float(prior.seconds(chip, products, self._lean(prior, dtype))[0])
        if self.calibration is not None or not self._on_tensor_cores(dtype):
            return burst
        return burst / sustained_share(self.device, float(products.flops[0]) / burst / chip.flops_per_second)

    def _on_tensor_cores(self, dtype: str) -> bool:
        is_emulated = dtype == "bfloat16" and self.device.emulates_bf16
        return dtype != "float32" and self.device.has_tensor_cores and not is_emulated

    def _convolution_dtype(self, call: Call) -> str:
        """By cuDNN's own switch, which is on unless it is set."""
        dtype = factors_dtype(call)
        return self.device.product_dtype(REAL_DTYPES.get(dtype, dtype), tf32=self.tf32_convolutions)

    def convolutions(self, dtype: str) -> ConvolutionModel:
        """The model of convolutions in `dtype` on this GPU."""
        on_tensor_cores = self._on_tensor_cores(dtype)
        prior, chip = _products("tensor" if on_tensor_cores else "simt"), self._chip(dtype)
        lean = self._lean(prior, dtype)
        return ConvolutionModel(
            product_seconds=lambda products: prior.seconds(chip, products, lean),
            bytes_per_second=self._bandwidth(),
            plain_flops_per_second=self.device.peak("float32"),
            on_tensor_cores=on_tensor_cores,
            cycles_per_second=(self.device.sm_count or 1) * self.device.boost_clock_hertz,
        )

    def _weighted(self, parts: Parts) -> float:
        """Seconds of the parts of a call, each times its coefficient; dense products have those of the nearest GPU."""
        coefficients = table()["images"] | dict(zip(DENSE, self._coefficients("dense_convolutions"), strict=True))
        own = table()["convolutions"]
        coefficients |= own.get(example_of(self.device, own, "float16") or "", {})
        return sum(coefficients[name] * seconds for name, seconds in parts.items())

    def _chip(self, dtype: str) -> Chip:
        gpu = self.device
        count, l2, clock = gpu.sm_count or 1, gpu.l2_bytes or 1, gpu.boost_clock_hertz
        return Chip(gpu.peak(dtype), self._bandwidth(), count, l2, clock)

    def _lean(self, prior: ProductPrior, dtype: str) -> NDArray[np.float64] | None:
        timed = [p for p in self.calibration.products if p.dtype == dtype] if self.calibration is not None else []
        leans = prior.float8_lean if dtype.startswith("float8") and prior.float8_lean else prior.lean
        like = leans.get(example_of(self.device, leans, "float16" if self._on_tensor_cores(dtype) else "float32") or "")
        if not timed:
            return like
        if dtype not in self._leans:
            columns = (np.array([float(getattr(p, name)) for p in timed]) for name in ("batch", "m", "n", "k"))
            products = Products(*columns, width=4.0 if dtype == "float32" else 2.0)
            self._leans[dtype] = prior.learn(self._chip(dtype), products, np.array([p.seconds for p in timed]), like)
        return self._leans[dtype]

    def _attention(self, call: Call) -> float:
        """FLOP that the kernel executes (causal ones skip half) at the share of peak that it reaches."""
        length, blocks = length_and_blocks(call)
        major = (self.device.compute_capability or (0, 0))[0]
        is_cudnn = "cudnn" in call.name and major in CUDNN_IS_NATIVE
        flash = "attention_3" if "_attention_3_" in call.name else OF_BLACKWELL if major == 10 else "attention"
        flash = OF_ROCM if self.device.is_amd else flash
        kind, is_backward = "attention_cudnn" if is_cudnn else flash, "backward" in call.name
        curve = kind + ("" if has_diagonal(call) else "_bidirectional")
        curve += "_backward" if is_cudnn and is_backward else ""
        most, half_length, half_wave, start, power = self._coefficients(curve)
        if has_half_rate(self.device):  # products take twice as long, what is beside them does not
            most = 2 / (1 + 1 / most)
        waves, size = blocks / (self.device.sm_count or 1), query_of(call).shape[-1] / WIDE_HEAD
        share = most * length / (length + half_length / min(size, 1.0)) * waves / (waves + half_wave)
        share *= (min(size, 1.0) if is_cudnn else size) ** power
        if kind == "attention":
            share *= OLDER_SHARE.get(major, 1.0)
        if is_backward and not is_cudnn:
            elsewhere = ROCM_BACKWARD_SHARE if self.device.is_amd else BACKWARD_ELSEWHERE
            share *= BACKWARD_SHARE.get(major, elsewhere)
        if "efficient" in call.name and not self.device.is_amd:  # ROCm has one kernel for both
            share *= EFFICIENT_SHARE_OF_FLASH
        skips_half = is_causal(call) and any(kernel in call.name for kernel in HALF_CAUSAL)
        heads = math.ceil(query_of(call).shape[-1] / HEAD_ROUNDING) * HEAD_ROUNDING / query_of(call).shape[-1]
        flops = call.flops * heads / (2 if skips_half else 1)
        peak = attention_peak(self.device, self._dtype(call), is_efficient="efficient" in call.name)
        return start * MICRO + flops / (peak * share)


def elements_of(spec: TensorSpec) -> int:
    """Elements of a tensor."""
    count = 1
    for length in spec.shape:
        count *= length
    return count
