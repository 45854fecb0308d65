"""BatchNorm and pooling: passes over memory."""

import pytest

from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.image_layers import image_layer_parts, native_norm_seconds
from forerun.clock.priors import PriorCosts, table
from forerun.clock.test_convolutions import spec
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec

BANDWIDTH = 1e12
VECTOR = TensorSpec((64,), (1,), "float32", 256)


def batch_norm(last=True, trains=True, backward=False, gradient_last=None):
    image = spec((32, 64, 56, 56), last=last)
    arguments = (image, VECTOR, VECTOR, VECTOR, VECTOR, trains, 0.1, 1e-5)
    if not backward:
        inputs = (image, VECTOR)
        return Call("aten.native_batch_norm.default", arguments, (), inputs, (image,), 0, image.bytes, image.bytes)
    gradient = image if gradient_last is None else spec((32, 64, 56, 56), last=gradient_last)
    arguments = (gradient, *arguments[:6], VECTOR, trains, 1e-5, (True, True, True))
    return Call("aten.native_batch_norm_backward.default", arguments, (), (gradient, image, VECTOR), (image,), 0,
                2 * image.bytes, image.bytes)  # fmt: skip


def test_a_pass_moves_what_is_read_and_written():
    size = 2 * 32 * 64 * 56 * 56
    assert image_layer_parts(batch_norm(), BANDWIDTH) == {
        "batch_norm_last_forward": pytest.approx(KERNEL_SECONDS + 2 * size / BANDWIDTH)
    }
    assert image_layer_parts(batch_norm(last=False, backward=True), BANDWIDTH) == {
        "batch_norm_first_backward": pytest.approx(KERNEL_SECONDS + 3 * size / BANDWIDTH)
    }


def test_a_gradient_of_another_layout_is_copied():
    parts = image_layer_parts(batch_norm(backward=True, gradient_last=False), BANDWIDTH)
    assert set(parts) == {"batch_norm_last_backward", "padding"}


def test_evaluation_and_other_operators_take_one_pass():
    assert image_layer_parts(batch_norm(trains=False), BANDWIDTH) is None
    add = Call("aten.add.Tensor", (), (), (), (), 0, 1, 1)
    assert image_layer_parts(add, BANDWIDTH) is None


def test_statistics_need_more_than_one_pass_and_fewer_than_two_each():
    """Reading twice to write once: at most 1.5 forward and 5/3 backward; what L2 and registers save is less."""
    coefficients = table()["images"]
    for layout in ("first", "last"):
        assert 1 < coefficients[f"batch_norm_{layout}_forward"] < 2
        assert 1 < coefficients[f"batch_norm_{layout}_backward"] < 2


@pytest.mark.parametrize(
    ("source", "target", "parts"),
    [(False, True, {"transposition"}), (True, False, {"transposition"}), (True, True, None), (False, False, None)],
)
def test_a_change_of_layout_is_slower_than_a_copy(source, target, parts):
    x, y = (spec((32, 64, 56, 56), last=last) for last in (source, target))
    call = Call("aten.clone.default", (x,), (), (x,), (y,), 0, x.bytes, y.bytes)
    result = image_layer_parts(call, BANDWIDTH)
    assert (None if result is None else set(result)) == parts


@pytest.mark.parametrize(("last", "dimension", "slow"), [(True, 1, True), (False, 1, False), (True, 0, False)])
def test_channels_put_side_by_side(last, dimension, slow):
    x, y = spec((32, 64, 56, 56), last=last), spec((32, 128, 56, 56), last=last)
    call = Call("aten.cat.default", ((x, x), dimension), (), (x, x), (y,), 0, y.bytes, y.bytes)
    assert (image_layer_parts(call, BANDWIDTH) is not None) is slow


def test_heads_of_a_language_model_are_moved_without_a_change_of_layout():
    x = TensorSpec((4, 12, 128, 64), (98304, 64, 768, 1), "float16", 786432)
    y = TensorSpec((4, 12, 128, 64), (98304, 8192, 64, 1), "float16", 786432)
    assert image_layer_parts(Call("aten.clone.default", (x,), (), (x,), (y,), 0, 1, 1), BANDWIDTH) is None


@pytest.mark.parametrize("name", ["max_pool2d_with_indices", "avg_pool2d_backward", "_adaptive_avg_pool2d",
                                  "upsample_bilinear2d", "upsample_nearest2d_backward"])  # fmt: skip
def test_pooling_and_interpolation_are_bound_by_bytes(name):
    image = spec((32, 64, 56, 56))
    call = Call(f"aten.{name}.default", (image,), (), (image,), (image,), 0, image.bytes, image.bytes)
    costs = PriorCosts(device("rtx-3090"))
    assert costs.device_seconds(call) > 2 * image.bytes / costs.device.bandwidth_bytes_per_second


def narrow_norm(dtype="bfloat16", channels=32, weight=VECTOR, last=False, backward=False):
    image = spec((8, channels, 64, 64), last=last)
    image = TensorSpec(image.shape, image.stride, dtype, image.bytes)
    arguments = (image, weight, weight, None, None, True, 0.1, 1e-5)
    if not backward:
        return Call("aten.native_batch_norm.default", arguments, (), (image,), (image,), 0, image.bytes, image.bytes)
    arguments = (image, image, weight, None, None, None, None, True, 1e-5, (True, True, True))
    return Call("aten.native_batch_norm_backward.default", arguments, (), (image, image), (image,), 0,
                2 * image.bytes, image.bytes)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "is_native"),
    [
        (narrow_norm(), True), (narrow_norm("float32"), False), (narrow_norm("float16"), False),
        (narrow_norm("float32", weight=None), True), (narrow_norm(last=True), False),
        (narrow_norm(backward=True), True), (narrow_norm("float16", backward=True), False), (batch_norm(), False),
    ],
)  # fmt: skip
def test_pytorch_itself_norms_what_cudnn_does_not_take(call, is_native):
    assert (native_norm_seconds(call, BANDWIDTH, 100, 1e9) is not None) == is_native


def test_few_channels_leave_multiprocessors_idle():
    """One block for each: twice the channels take as long, until every multiprocessor has two."""
    few, more, many, most = (native_norm_seconds(narrow_norm(channels=n), 1e15, 100, 1e9) for n in (16, 32, 512, 1024))
    assert few == pytest.approx(more, rel=0.01)
    launches = 2 * KERNEL_SECONDS
    assert most - launches == pytest.approx(2 * (many - launches), rel=0.001)
    assert many > 2 * more
    back = native_norm_seconds(narrow_norm(backward=True), 1e15, 100, 1e9)
    assert back - KERNEL_SECONDS == pytest.approx(2 * (more - launches), rel=0.001)
