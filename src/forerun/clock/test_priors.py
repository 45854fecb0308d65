"""Costs from priors: published figures, limits by hand, and refusal where there is no peak."""

import dataclasses
import math

import pytest
import torch

import forerun
from forerun.clock.alike import example_of
from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.issuing import NETWORK_SECONDS, OPERATOR_HOST_SECONDS
from forerun.clock.measured import MeasuredCosts
from forerun.clock.power import sustained_share
from forerun.clock.priors import PriorCosts, table
from forerun.errors import MissingPeak
from forerun.experience import DeviceCalibration, TimedProduct
from forerun.hardware.catalogue import device, devices
from forerun.trace import Call, TensorSpec
from forerun.units import TERA

A100 = device("a100-40gb")
F8 = "float8_e4m3fn"


def product(m, n=None, k=None, dtype="bfloat16", width=2, name="mm"):
    n, k = n or m, k or m
    left, right = (TensorSpec(s, (s[1], 1), dtype, s[0] * s[1] * width) for s in ((m, k), (k, n)))
    out = TensorSpec((m, n), (n, 1), dtype, m * n * width)
    return Call(f"aten.{name}.default", (left, right), (), (left, right), (out,), 2 * m * n * k, left.bytes + right.bytes,
                out.bytes)  # fmt: skip


def seconds_of_gelu(gpu, elements):
    """Of bfloat16."""
    call = Call("aten.gelu.default", (), (), (), (), 0, 2 * elements, 2 * elements)
    return PriorCosts(device(gpu)).device_seconds(call)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "tera"),
    [("a100-80gb", 256.9), ("h100-80gb", 713.2), ("h200", 670.3), ("l40s", 187.1), ("b200", 1686.7)],
)
def test_large_products_reach_what_was_measured(gpu, tera):
    """8,192 cubed in BF16, TFLOP/s as AIConfigurator's data has it; within 20 %: the fit is 7 % off in the mean over all
    shapes, and clocks under full load differ by card.
    """
    call = product(8192)
    assert call.flops / PriorCosts(device(gpu)).device_seconds(call) / 1e12 == pytest.approx(tera, rel=0.2)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "size", "micro"), [("h100-80gb", 8192, 836), ("h200", 4096, 148), ("l40s", 4096, 423), ("l40s", 8192, 3153)]
)
def test_large_float8_products_reach_what_was_measured(gpu, size, micro):
    """Cubes as AIConfigurator timed them, bursts with the cast of the activations before them; within 20 %: what is
    learned is 10 to 15 % off in the median of rows that were not.
    """
    costs, values = PriorCosts(device(gpu)), size * size
    wide, narrow = TensorSpec((values,), (1,), "bfloat16", 2 * values), TensorSpec((values,), (1,), F8, values)
    cast = Call("aten._to_copy.default", (wide,), (), (wide,), (narrow,), 0, 2 * values, values)
    call = product(size, dtype=F8, width=1, name="_scaled_mm")
    alone = costs.device_seconds(call) * sustained_share(device(gpu), 0.7)
    assert (costs.device_seconds(cast) + alone) * 1e6 == pytest.approx(micro, rel=0.2)


def test_a_float8_product_is_faster_than_one_of_twice_the_bytes():
    for gpu in ("h100-80gb", "b200", "l40s"):
        costs = PriorCosts(device(gpu))
        narrow = product(8192, dtype=F8, width=1, name="_scaled_mm")
        assert costs.device_seconds(narrow) < 0.75 * costs.device_seconds(product(8192))


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "shape", "micro"),
    [("t4", (512, 16, 512), 16), ("t4", (1024, 32, 512), 21), ("v100-32gb", (1760, 16, 1760), 38),
     ("v100-32gb", (1760, 64, 1760), 56)],
)  # fmt: skip
def test_small_fp32_products_take_what_deepbench_measured(gpu, shape, micro):
    """DeepBench da81ba7 (Apache-2.0), results/train, FP32; within 35 %: of its 38 products under 60 microseconds, none
    of which was fitted, the mean is 13 % off; the launch of a kernel, which the fitted timings hold, made it 136 %.
    """
    m, n, k = shape
    call = product(m, n, k, dtype="float32", width=4)
    assert PriorCosts(device(gpu)).device_seconds(call) * 1e6 == pytest.approx(micro, rel=0.35)


def test_errors_of_the_fit_are_in_the_file():
    errors = table()["errors"]["tensor"]
    assert errors["known"] < 0.09, "a fit for each GPU alone was 8.5 % off (reference/estimation.md)"
    assert errors["known"] < errors["with_20_measured"] < errors["left_out"]
    large = errors["sides_from_512"]  # the shapes that the next two figures are about as well
    assert large["left_out"] < 0.104
    assert large["with_20_measured"] < 0.076


ABOVE_STATED_CLOCK = 1.2
"""GeForce boards go beyond the clock of their peak: an RTX 3060 Ti reached 36.5 of 32.4 TFLOP/s, an RTX 5090 240 of 209.5
(zzc0721/torch-performance-test-data, issues 55 and 96)."""


@pytest.mark.parametrize("gpu", [row.name for row in devices() if "float16" in row.peak_flops_per_second][::5])
def test_every_gpu_has_costs(gpu):
    row = device(gpu)
    dtype = "bfloat16" if row.has_bf16 else "float16"
    costs = PriorCosts(row)
    for call in (product(4096, dtype=dtype), product(4096, dtype="float32", width=4)):
        share = call.flops / costs.device_seconds(call) / row.peak(call.inputs[0].dtype)
        assert 0.2 < share < ABOVE_STATED_CLOCK


def test_more_work_takes_longer():
    costs = PriorCosts(A100)
    times = [costs.device_seconds(product(4096, 4096, k)) for k in (256, 512, 1024, 2048, 4096, 8192)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2 * times[-2], rel=0.15)


def test_elementwise_is_bound_by_bandwidth():
    call = Call("aten.add.Tensor", (), (), (), (), 0, 2 * 10**9, 10**9)
    assert A100.bandwidth_bytes_per_second is not None
    share = 3e9 / (PriorCosts(A100).device_seconds(call) - KERNEL_SECONDS) / A100.bandwidth_bytes_per_second
    assert 0.75 < share < 1


@pytest.mark.literature
@pytest.mark.parametrize(("gpu", "gigabytes_per_second"), [("a10g", 467), ("t4", 240), ("a10", 469)])
def test_error_correction_in_gddr_takes_a_part_of_the_bandwidth(gpu, gigabytes_per_second):
    """PyTorch's kernels over large tensors (`benchmarks/priors/copies.py`); an A40 has what others like it reach."""
    shares = [PriorCosts(device(name))._share() for name in ("a10", "a40", "l40s", "rtx-3090")]
    assert max(shares[:3]) < 0.9 * shares[3]
    call = Call("aten.add.Tensor", (), (), (), (), 0, 2 * 10**9, 10**9)
    assert 3 / PriorCosts(device(gpu)).device_seconds(call) == pytest.approx(gigabytes_per_second, rel=0.03)


def test_what_a_large_l2_holds_is_read_from_there():
    # An L40S keeps 96 MiB: 32 MiB read and 32 written fit, 128 and 128 do not; an RTX 3090 keeps 6 MiB.
    fits, does_not = 2**24, 2**26
    per_byte = {
        gpu: [seconds_of_gelu(gpu, n) * device(gpu).bandwidth_bytes_per_second / n for n in (fits, does_not)]
        for gpu in ("l40s", "rtx-3090")
    }
    assert per_byte["l40s"][0] < 0.75 * per_byte["l40s"][1]
    assert per_byte["rtx-3090"][0] == pytest.approx(per_byte["rtx-3090"][1], rel=0.1)


def test_what_is_overwritten_in_l2_never_reaches_memory():
    costs, size = PriorCosts(device("l40s")), 2**24
    assert costs._from_memory(Call("aten.fill_.Scalar", (), (), (), (), 0, 0, size)) == size / 2
    assert costs._from_memory(Call("aten.fill_.Scalar", (), (), (), (), 0, 0, 2**30)) > 0.95 * 2**30


def test_l2_in_two_partitions_holds_half():
    # 24 MiB read and written are in the 48 MiB of an L4, and not in two partitions of 20 MiB of an A100.
    l4, a100 = (seconds_of_gelu(g, 12 * 2**20) * device(g).bandwidth_bytes_per_second for g in ("l4", "a100-80gb"))
    assert l4 < 0.8 * a100


def test_views_and_graphs():
    view = Call("aten.view.default", (), (), (), (), 0, 0, 0, is_view=True)
    costs = PriorCosts(A100)
    assert costs.device_seconds(view) == 0
    assert costs.host_seconds(product(64)) == OPERATOR_HOST_SECONDS
    assert costs.host_seconds(dataclasses.replace(product(64), issuer="graph")) == 0


def test_tf32_uses_tensor_cores():
    call = product(4096, dtype="float32", width=4)
    assert PriorCosts(A100, tf32=True).device_seconds(call) < PriorCosts(A100).device_seconds(call)


@pytest.mark.parametrize("gpu", ["t4", "v100-16gb", "gtx-1080-ti"])
@pytest.mark.parametrize("name", ["mm", "addmm"])
def test_a_gpu_without_tf32_ignores_the_switch(gpu, name):
    call = product(1024, dtype="float32", width=4)
    if name == "addmm":
        call = dataclasses.replace(call, name="aten.addmm.default", arguments=(call.outputs[0], *call.arguments))
    assert PriorCosts(device(gpu), tf32=True).device_seconds(call) == PriorCosts(device(gpu)).device_seconds(call)


def test_a_dtype_without_peak_is_refused():
    with pytest.raises(MissingPeak, match="float8"):
        PriorCosts(device("t4")).device_seconds(product(512, dtype=F8, width=1))


@pytest.mark.parametrize("gpu", ["t4", "v100-16gb", "gtx-1080-ti"])
def test_emulated_bfloat16_is_slower_than_float32(gpu):
    """A GTX 1080: 37.73 ms for 4,096³ beside 20.34 in float32 (kubeedge/ianvs issue 888)."""
    costs = PriorCosts(device(gpu))
    emulated, single = (
        costs.device_seconds(product(4096, dtype=d, width=w)) for d, w in (("bfloat16", 2), ("float32", 4))
    )
    assert 1.5 * single < emulated < 2.2 * single
    assert emulated > costs.device_seconds(product(4096, dtype="float16"))


@pytest.mark.parametrize(
    ("gpu", "like", "evidence"),
    [("a100-80gb", "a100-80gb", "measured"), ("a100-40gb", "a100-80gb", "architecture"), ("t4", "t4", "measured"),
     ("rtx-5090", "rtx-5090", "measured"), ("rtx-3080-12gb", "rtx-3080-10gb", "architecture"), ("rtx-a5500", "a40", "architecture"),
     ("rtx-4080", "rtx-4070-ti-super", "architecture"), ("quadro-rtx-8000", None, "unseen"),
     ("rtx-pro-5000-48gb", "rtx-pro-6000-server", "architecture"), ("l4", "l40s", "architecture"), ("h100-pcie", "h200", "architecture"),
     ("mi300x", "mi300x", "unseen"), ("mi350x", "mi355x", "unseen")],
)  # fmt: skip
def test_whose_measurements_are_used_is_said(gpu, like, evidence):
    names = list(table()["products"]["tensor"]["lean"])
    example = example_of(device(gpu), names)
    assert (example == like) or (gpu == "h100-pcie" and example in ("h100-80gb", "h200"))
    assert PriorCosts(device(gpu)).evidence == evidence


@pytest.mark.literature
@pytest.mark.parametrize(
    ("m", "n", "k", "tera"), [(8192, 28672, 4096, (628.88, 579.77)), (8192, 3584, 18944, (599.57, 464.75))]
)
def test_products_on_amd_reach_what_its_libraries_do(m, n, k, tera):
    """MI300X, two sessions of AMD-AGI/Primus-Turbo; of models that nothing was learned from (benchmarks/priors/rocm.py)."""
    left, right, out = (
        TensorSpec(shape, (shape[1], 1), "bfloat16", 2 * math.prod(shape)) for shape in ((m, k), (k, n), (m, n))
    )
    call = Call("aten.mm.default", (left, right), (), (left, right), (out,), 2 * m * n * k, left.bytes, out.bytes)
    reached = call.flops / PriorCosts(device("mi300x")).device_seconds(call) / TERA
    assert reached == pytest.approx(sum(tera) / 2, rel=0.15)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "size", "tera"),
    [
        ("rtx-4090", 2048, 167.1),
        ("rtx-4090", 8192, 158.6),
        ("a100-80gb-pcie", 2048, 192.5),
        ("a100-80gb-pcie", 8192, 215.3),
    ],
)
def test_square_products_reach_what_a_stranger_measured(gpu, size, tera):
    # mli/transformers-benchmarks, issue 4 (13 April 2023); an A800 is an A100. Not what the leans were learned from.
    call = product(size, dtype="float16")
    assert call.flops / PriorCosts(device(gpu)).device_seconds(call) / TERA == pytest.approx(tera, rel=0.16)


def test_a_card_that_its_power_holds_back_is_no_example_for_others():
    assert PriorCosts(device("rtx-5000")).evidence == "unseen"
    big = product(8192, dtype="float16")
    shares = [
        big.flops / PriorCosts(device(g)).device_seconds(big) / device(g).peak("float16") for g in ("t4", "rtx-5000")
    ]
    assert shares[0] < 0.65 < shares[1]


@pytest.mark.literature
@pytest.mark.parametrize(("gpu", "reached"), [("rtx-4090", 921.3), ("rtx-2060-6gb", 307.3), ("rtx-2080", 400.8)])
def test_memory_of_boards_with_power_to_spare_reaches_what_clpeak_reads(gpu, reached):
    seconds = seconds_of_gelu(gpu, 2**28)
    assert 2 * 2 * 2**28 / seconds / 1e9 == pytest.approx(reached, rel=0.05)


@pytest.mark.parametrize(("ranks", "algbw"), [(2, 282), (8, 229)])
def test_collectives_are_near_published_ones(ranks, algbw):
    """A gigabyte reduced over H100s, GB/s: 512 MiB by AIConfigurator's NCCL 2.29 timings, fitted half (2 ranks, H200)."""
    spec = TensorSpec((5 * 10**8,), (1,), "bfloat16", 10**9)
    call = Call("c10d.allreduce_.default", (), (), (spec,), (spec,), 0, 10**9, 10**9)
    seconds = PriorCosts(device("h100-80gb"), world_size=ranks).device_seconds(call)
    assert 1 / seconds == pytest.approx(algbw, rel=0.12)


@pytest.mark.parametrize("gpu", ["a100-40gb", "a100-80gb-pcie", "t4", "rtx-4090"])
def test_links_of_every_gpu_of_the_catalogue_are_known(gpu):
    assert PriorCosts(device(gpu), world_size=16).knows_ranks
    assert not PriorCosts(device(gpu).model_copy(update={"name": "of-no-catalogue"}), world_size=2).knows_ranks
    assert PriorCosts(device(gpu).model_copy(update={"name": "of-no-catalogue"})).knows_ranks


def test_nccl_holds_multiprocessors_of_several_ranks_only():
    assert PriorCosts(A100).communication_share == 0
    assert PriorCosts(A100, world_size=8).communication_share == pytest.approx(24 / 108)


def test_measured_costs_fall_back_and_say_so():
    timed, untimed = product(64), product(128)
    costs = MeasuredCosts({timed: 0.5}, 1e-5, copy_bytes_per_second={2**20: 1e10}, flops_per_second=1e9, is_host=True)
    assert costs.device_seconds(timed) == 0.5
    assert costs.device_seconds(untimed) == pytest.approx(untimed.flops / 1e9)
    assert costs.missing == {"aten.mm.default"}


def calibrated(slower):
    """An A100 whose products and copies take `slower` times what the prior says."""
    gpu = device("a100-80gb")
    plain = PriorCosts(gpu)
    shapes = [(m, k, n) for m in (128, 1024, 4096) for k in (768, 4096) for n in (768, 3072, 8192)]
    products = [
        TimedProduct(dtype="bfloat16", batch=1, m=m, k=k, n=n, seconds=slower * plain.device_seconds(product(m, n, k)))
        for m, k, n in shapes
    ]
    return PriorCosts(gpu, calibration=DeviceCalibration(
        gpu=gpu.name, device_name="", threads=1, products=products, attention=[],
        copy_bytes_per_second={1: plain._bandwidth() * plain._share() / slower}, fresh_page_seconds_per_byte=0,
        operator_host_seconds=slower * NETWORK_SECONDS, disk_write_bytes_per_second=1,
        disk_read_bytes_per_second=1, tokenised_bytes_per_second=1, import_seconds=1, took_seconds=1,
    ))  # fmt: skip


@pytest.mark.parametrize("slower", [0.8, 1.0, 1.3])
def test_a_calibrated_gpu_is_as_fast_as_it_was_measured(slower):
    costs, call = calibrated(slower), product(2048, 2048, 2048)
    plain = PriorCosts(costs.device)
    assert costs.device_seconds(call) / plain.device_seconds(call) == pytest.approx(slower, rel=0.05)
    big = Call("aten.add.Tensor", (), (), (), (), 0, 2**31, 2**30)
    assert costs.device_seconds(big) / plain.device_seconds(big) == pytest.approx(slower, rel=0.01)
    assert costs.host_seconds(call) == pytest.approx(slower * OPERATOR_HOST_SECONDS)
    assert costs.evidence == "measured"
    assert "calibrated" in costs.description


def test_int8_products_take_their_peak_or_that_of_fp16_where_there_is_none():
    spec = TensorSpec((4096, 4096), (4096, 1), "int8", 4096**2)
    call = Call("forerun.multiply_int8.default", (spec, spec), (), (spec, spec), (), 2 * 4096**3, 0, 0)
    for gpu, dtype in (("a100-40gb", "int8"), ("v100-16gb", "float16")):
        row = device(gpu)
        share = call.flops / PriorCosts(row).device_seconds(call) / row.peak(dtype)
        assert 0.5 < share < 0.6


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_a_product_into_its_own_sum_costs_what_a_product_does(name):
    """`grad.addmm_(a, b)` was priced by its bytes alone, and its FLOP were none."""
    shape = (512, 512) if name == "addmm" else (4, 512, 512)
    with forerun.virtual_cuda("h100-80gb") as gpu:
        total, left, right = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        getattr(torch, name)(total, left, right)
        getattr(total, f"{name}_")(left, right)
        apart, within = (gpu.trace.calls[op.call] for op in gpu.trace.ops[-2:])
    assert within.name == f"aten.{name}_.default"
    assert within.flops == apart.flops > 0
    costs = PriorCosts(device("h100-80gb"))
    assert costs.device_seconds(within) == costs.device_seconds(apart)
