"""What an odd length of rows costs products, beside published steps and by the rules for what counts as one."""

import dataclasses

import pytest

from forerun.clock.alignment import is_unaligned, unaligned_seconds
from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec


def matrix(rows, columns, dtype="bfloat16", width=2, *, stride=None):
    return TensorSpec((rows, columns), stride or (columns, 1), dtype, rows * columns * width)


def product(m, n, k, dtype="float16", width=2, issuer="eager"):
    left, right, out = (matrix(*shape, dtype, width) for shape in ((m, k), (k, n), (m, n)))
    return Call("aten.mm.default", (left, right), (), (left, right), (out,), 2 * m * n * k, left.bytes + right.bytes,
                out.bytes, issuer=issuer)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (matrix(8, 50257), True), (matrix(8, 50304), False), (matrix(8, 30522), False),
        (matrix(50257, 8, stride=(1, 50257)), True), (matrix(50257, 768), False), (matrix(8, 101, "float32", 4), False),
        (matrix(4096, 1), False), (TensorSpec((101,), (1,), "bfloat16", 202), False),
        (TensorSpec((8, 12, 197, 197), (12 * 197 * 197, 197 * 197, 197, 1), "float16", 8 * 12 * 197 * 197 * 2), True),
        (TensorSpec((4, 7), (704, 1), "bfloat16", 56), False),
    ],
)  # fmt: skip
def test_rows_an_odd_number_of_halves_apart(spec, expected):
    assert is_unaligned(spec) is expected


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-80gb", "quadro-rtx-8000"])
def test_an_odd_vocabulary_takes_several_times_a_padded_one(gpu):
    """nanoGPT's 50,304 instead of 50,257; with 4 bytes for a value, on a V100 and in compiled code it is the same."""
    costs = PriorCosts(device(gpu))
    odd, padded = (costs.device_seconds(product(8192, vocabulary, 768)) for vocabulary in (50257, 50304))
    assert 1.5 * padded < odd < 8 * padded
    compiled = costs.device_seconds(product(8192, 50257, 768, issuer="compiled"))
    assert compiled == pytest.approx(padded, rel=0.02)


def test_it_costs_nothing_where_loads_do_not_decide():
    a100 = PriorCosts(device("a100-80gb"))
    single, other = (a100.device_seconds(product(2048, n, 768, "float32", 4)) for n in (50257, 50264))
    assert single == pytest.approx(other, rel=0.02)
    volta = PriorCosts(device("v100-32gb"))
    half = [volta.device_seconds(product(2048, n, 768, "float16")) for n in (50257, 50264)]
    assert half[0] == pytest.approx(half[1], rel=0.02)
    consumer = PriorCosts(device("rtx-3090"))  # 512 FLOP a cycle are all that its tensor cores have
    assert consumer.device_seconds(product(8192, 50257, 768)) < 1.25 * consumer.device_seconds(
        product(8192, 50304, 768)
    )


def test_its_time_grows_with_the_arithmetic_alone():
    call = product(8192, 50257, 768)
    seconds = unaligned_seconds(call, call.outputs, device("a100-80gb"))
    assert seconds == pytest.approx(call.flops / (450 * 108 * 1.41e9), rel=0.01)
    longer = dataclasses.replace(call, flops=2 * call.flops)
    assert unaligned_seconds(longer, call.outputs, device("a100-80gb")) == pytest.approx(2 * seconds)
