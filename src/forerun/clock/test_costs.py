"""Datasheet costs: roofline by hand, causal attention, and refusal where there is no peak."""

import pytest

from forerun.clock.costs import BANDWIDTH_SHARE, KERNEL_SECONDS, MATMUL_COMPUTE_SHARE, DatasheetCosts
from forerun.clock.measured import MeasuredCosts
from forerun.errors import MissingPeak
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec

A100 = device("a100-40gb")


def product(side, dtype="bfloat16", bytes_each=2):
    spec = TensorSpec((side, side), (side, 1), dtype, side * side * bytes_each)
    return Call("aten.mm.default", (spec, spec), (), (spec, spec), (spec,), 2 * side**3, 2 * spec.bytes, spec.bytes)


def test_large_products_are_bound_by_arithmetic():
    call = product(8192)
    seconds = DatasheetCosts(A100).device_seconds(call)
    assert seconds == pytest.approx(KERNEL_SECONDS + call.flops / (A100.peak("bfloat16") * MATMUL_COMPUTE_SHARE))


def test_elementwise_is_bound_by_bandwidth():
    call = Call("aten.add.Tensor", (), (), (), (), 0, 2 * 10**9, 10**9)
    assert A100.bandwidth_bytes_per_second is not None
    expected = 3 * 10**9 / (A100.bandwidth_bytes_per_second * BANDWIDTH_SHARE)
    assert DatasheetCosts(A100).device_seconds(call) == pytest.approx(KERNEL_SECONDS + expected)


def test_views_take_no_device_time():
    assert DatasheetCosts(A100).device_seconds(Call("aten.view.default", (), (), (), (), 0, 0, 0, is_view=True)) == 0


def test_tf32_uses_tensor_cores():
    assert DatasheetCosts(A100, tf32=True).device_seconds(product(4096, "float32", 4)) < DatasheetCosts(
        A100
    ).device_seconds(product(4096, "float32", 4))


def test_a_dtype_without_peak_is_refused():
    with pytest.raises(MissingPeak, match="bfloat16"):
        DatasheetCosts(device("t4")).device_seconds(product(512))


def test_causal_attention_does_half_the_work():
    spec = TensorSpec((1, 8, 2048, 64), (), "bfloat16", 2 * 8 * 2048 * 64)
    arguments = (spec, spec, spec, 0.0)

    def call(is_causal):
        name = "aten._scaled_dot_product_flash_attention.default"
        return Call(name, (*arguments, is_causal, False), (), (spec,) * 3, (spec,), 10**12, 0, 0)

    costs = DatasheetCosts(A100)
    full, causal = costs.device_seconds(call(False)), costs.device_seconds(call(True))
    assert causal - KERNEL_SECONDS == pytest.approx((full - KERNEL_SECONDS) / 2)


def test_measured_costs_fall_back_and_say_so():
    known, unknown = product(64), product(128)
    costs = MeasuredCosts({known: 0.5}, 1e-5, bytes_per_second=1e10, flops_per_second=1e9, is_host=True)
    assert costs.device_seconds(known) == 0.5
    assert costs.device_seconds(unknown) == pytest.approx(unknown.flops / 1e9)
    assert costs.missing == {"aten.mm.default"}
