"""Which kernels take more than a pass over their bytes, and what that makes of their time."""

import math
from dataclasses import replace

import pytest

from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.memory_kernels import INTO_ROWS, STRIDED, WIDENED, bytes_read, kind_of, memory_seconds
from forerun.clock.priors import PriorCosts, table
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec

WIDTHS = {"bfloat16": 2, "float32": 4, "int64": 8}


def spec(*shape, dtype="bfloat16", stride=None):
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return TensorSpec(shape, stride or dense, dtype, WIDTHS[dtype] * math.prod(shape))


def call(name, inputs, outputs, **others):
    read, written = (sum(each.bytes for each in specs) for specs in (inputs, outputs))
    return Call(f"aten.{name}", tuple(inputs), (), tuple(inputs), tuple(outputs), 0, read, written, **others)


ROWS = spec(64, 32)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (call("mul.Tensor", [ROWS, ROWS], [ROWS]), "mul"),
        (call("mul.Tensor", [ROWS, spec(32)], [ROWS]), STRIDED),
        (call("mul.Tensor", [ROWS, spec(1)], [ROWS]), "mul"),
        (call("clone.default", [spec(64, 32, stride=(1, 64))], [ROWS]), STRIDED),
        (call("add.Tensor", [spec(1, 32, stride=(99, 1)), spec(1, 32)], [spec(1, 32)]), "add"),
        (call("_to_copy.default", [ROWS], [spec(64, 32, dtype="float32")]), WIDENED),
        (call("_to_copy.default", [spec(64, 32, dtype="float32")], [ROWS]), "_to_copy"),
        (call("_to_copy.default", [], [ROWS]), "_to_copy"),
        (call("sum.dim_IntList", [ROWS], [spec(1, 32)]), INTO_ROWS),
        (call("sum.dim_IntList", [ROWS], [spec(64)]), "sum"),
        (call("sum.default", [ROWS], [spec()]), "sum"),
        (call("gelu.default", [ROWS], [ROWS]), "gelu"),
        (replace(call("gather.default", [ROWS, ROWS], [ROWS]), arguments=(ROWS, -1, ROWS)), "gather"),
        (replace(call("gather.default", [ROWS, ROWS], [ROWS]), arguments=(ROWS, 1, ROWS)), "gather"),
        (replace(call("gather.default", [ROWS, ROWS], [ROWS]), arguments=(ROWS, 0, ROWS)), "gather_rows"),
    ],
)
def test_kinds(made, kind):
    assert kind_of(made) == kind


def test_the_longer_of_passes_and_elements_is_taken():
    made = call("roll.default", [ROWS], [ROWS])
    assert memory_seconds(made, 1.0, 100.0, {}) == 1.0
    assert memory_seconds(made, 1.0, 100.0, {"roll": (2.0, 0.0)}) == 2.0
    assert memory_seconds(made, 1.0, 100.0, {"roll": (2.0, 5.12)}) == pytest.approx(64 * 32 / 512)


def test_a_loss_reads_one_score_of_each_row():
    scores, targets = spec(4096, 32000, dtype="float32"), spec(4096, dtype="int64")
    loss = call("nll_loss_forward.default", [scores, targets], [spec(dtype="float32")])
    assert bytes_read(loss) == 8 * 4096
    assert PriorCosts(device("h100-80gb")).device_seconds(loss) == pytest.approx(KERNEL_SECONDS, rel=0.1)
    gradient = call("nll_loss_backward.default", [scores, targets], [scores])
    written = call("gelu.default", [targets], [scores])
    seconds = [PriorCosts(device("h100-80gb")).device_seconds(each) for each in (gradient, written)]
    assert seconds[0] == pytest.approx(seconds[1])


@pytest.mark.golden
@pytest.mark.parametrize(
    ("name", "dtype", "micro"),
    [("_softmax_backward_data", "float32", 1062.9), ("_softmax_backward_data", "bfloat16", 536.7)],
)
def test_measured_on_an_h100(name, dtype, micro):
    """benchmarks/truth/operators-h100-80gb.csv: 32 x 16 heads of 512 x 512, the larger of two sizes."""
    image = spec(32, 16, 512, 512, dtype=dtype)
    seconds = PriorCosts(device("h100-80gb")).device_seconds(call(f"{name}.default", [image, image], [image]))
    assert seconds * 1e6 == pytest.approx(micro, rel=0.02)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("rows", "dtype", "micro"),
    [(2048, "float32", 181.2), (2048, "bfloat16", 144.3), (16384, "float32", 646.8), (16384, "bfloat16", 587.0)],
)
def test_the_gradient_of_a_table_measured_on_an_h100(rows, dtype, micro):
    """The same file: 32,000 rows of 2,048."""
    gradient, ids, table_of = spec(rows, 2048, dtype=dtype), spec(rows, dtype="int64"), spec(32000, 2048, dtype=dtype)
    made = call("embedding_dense_backward.default", [gradient, ids], [table_of])
    assert PriorCosts(device("h100-80gb")).device_seconds(made) * 1e6 == pytest.approx(micro, rel=0.1)


def test_every_figure_slows():
    assert all(passes >= 1 and per_clock >= 0 for passes, per_clock in table()["memory_kernels"].values())
