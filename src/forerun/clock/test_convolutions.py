"""Convolutions: shapes of their products by hand, published timings, and what must hold for every GPU."""

import dataclasses
import math

import pytest

from forerun.clock.convolutions import Convolution, has_gaps, is_channels_last, kernels_of, shape_of
from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.priors import PriorCosts, table
from forerun.clock.test_priors import ABOVE_STATED_CLOCK
from forerun.hardware.catalogue import device, devices
from forerun.trace import Call, TensorSpec

GPU = device("rtx-3090")
COSTS = PriorCosts(GPU)


def spec(shape, dtype="float16", last=False):
    batch, channels, height, width = shape
    strides = (channels * height * width, height * width, width, 1)
    if last:
        strides = (channels * height * width, 1, channels * width, channels)
    return TensorSpec(shape, strides, dtype, batch * channels * height * width * (4 if dtype == "float32" else 2))


def torch_strides(shape):
    """Strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def forward(batch=64, inputs=256, outputs=256, side=28, taps=3, stride=1, groups=1, dtype="float16", last=True):
    """A convolution whose padding keeps the sides, as a call."""
    image, result = (batch, inputs, side, side), (batch, outputs, side // stride, side // stride)
    x, y, weight = spec(image, dtype, last), spec(result, dtype, last), spec((outputs, inputs // groups, taps, taps),
                                                                           dtype, last)  # fmt: skip
    rest = ((stride, stride), (taps // 2, taps // 2), (1, 1), False, (0, 0), groups)
    flops = 2 * batch * outputs * result[2] ** 2 * inputs // groups * taps**2
    return Call("aten.convolution.default", (x, weight, None, *rest), (), (x, weight), (y,), flops, x.bytes, y.bytes)


def backward(call, mask=(True, True, False), gradient=None):
    """The backward call of a forward call."""
    x, weight, _, *rest = call.arguments
    gradient = gradient or call.outputs[0]
    arguments = (gradient, x, weight, None, *rest, mask)
    return Call("aten.convolution_backward.default", arguments, (), (gradient, x, weight), (x, weight),
                call.flops * sum(mask[:2]), 0, 0)  # fmt: skip


def seconds(call, costs=COSTS):
    return costs.device_seconds(call)


def test_shapes_by_hand():
    shape = shape_of(forward(batch=2, inputs=8, outputs=16, side=10, taps=3, stride=2, groups=2))
    assert shape == Convolution(2, 8, 16, 2, 100, 25, 9, 4, 2, True, has_cudnn_depthwise=False)
    assert shape.flops == 2 * 2 * 25 * 16 * 4 * 9
    assert shape.image_bytes == 2 * 2 * 8 * 100
    assert shape.weight_bytes == 2 * 16 * 4 * 9
    assert shape_of(backward(forward(batch=2, inputs=8, outputs=16, side=10, taps=3, stride=2, groups=2))) == shape


def test_a_transposed_convolution_is_the_gradient_of_another():
    plain = forward(inputs=64, outputs=32, side=28, stride=2)
    x, weight, _, *rest = plain.arguments
    arguments = (plain.outputs[0], weight, None, *rest[:3], True, *rest[4:])
    transposed = Call("aten.convolution.default", arguments, (), (plain.outputs[0], weight), (x,), plain.flops, 0, 0)
    shape = shape_of(transposed)
    assert dataclasses.replace(shape, is_transposed=False) == shape_of(plain)
    assert kernels_of(transposed, shape) == ["image"]
    assert seconds(transposed) == pytest.approx(seconds(backward(plain, (True, False, False))))


def test_one_and_three_dimensions_are_priced_too():
    for sides in ((128,), (8, 16, 16)):
        rest = ((1,) * len(sides), (1,) * len(sides), (1,) * len(sides), False, (0,) * len(sides), 1)
        x = TensorSpec((8, 64, *sides), (), "float16", 2 * 8 * 64 * math.prod(sides))
        x = dataclasses.replace(x, stride=torch_strides(x.shape))
        taps = (3,) * len(sides)
        weight = TensorSpec((64, 64, *taps), torch_strides((64, 64, *taps)), "float16", 2 * 64 * 64 * math.prod(taps))
        flops = 2 * 8 * 64 * 64 * math.prod(sides) * math.prod(taps)
        call = Call(
            "aten.convolution.default", (x, weight, None, *rest), (), (x, weight), (x,), flops, x.bytes, x.bytes
        )
        assert 0 < call.flops / seconds(call) < 1.05 * GPU.peak("float16")
        assert shape_of(call).taps == math.prod(taps)


@pytest.mark.parametrize(("mask", "kernels"), [((True, True, False), ["image", "weights"]),
                                               ((False, True, True), ["weights"])])  # fmt: skip
def test_only_the_gradients_asked_for_are_computed(mask, kernels):
    call = backward(forward(), mask)
    assert kernels_of(call, shape_of(call)) == kernels


def test_a_layout_is_told_from_strides():
    assert is_channels_last(spec((2, 8, 4, 4), last=True))
    assert not is_channels_last(spec((2, 8, 4, 4)))
    assert not is_channels_last(spec((2, 8, 1, 1), last=True)), "one position has no layout"
    assert not has_gaps(spec((2, 8, 4, 4), last=True))
    assert has_gaps(TensorSpec((2, 4, 4, 4), (128, 1, 32, 8), "float16", 256)), "half of the channels"
    assert has_gaps(TensorSpec((2, 4, 4, 4), (4, 1, 0, 0), "float16", 256)), "expanded"


@pytest.mark.parametrize("groups", [1, 8, 256])
@pytest.mark.parametrize("last", [True, False])
def test_more_images_take_longer(groups, last):
    calls = [forward(batch=batch, groups=groups, last=last) for batch in (16, 32, 64, 128)]
    for kind in (calls, [backward(call) for call in calls]):
        times = [seconds(call) for call in kind]
        assert times == sorted(times)
        assert times[-1] > 3 * times[0]


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("channels", [64, 256])
def test_channels_last_is_no_slower_in_sixteen_bits(taps, channels):
    last, first = (forward(inputs=channels, outputs=channels, taps=taps, last=last) for last in (True, False))
    assert seconds(last) < seconds(first)
    assert seconds(backward(last)) < seconds(backward(first))


def test_depthwise_is_bound_by_bytes_and_far_from_its_arithmetic():
    call = forward(groups=256)
    assert seconds(call) > (call.bytes_read + call.bytes_written) / GPU.bandwidth_bytes_per_second
    assert call.flops / seconds(call) < 0.1 * GPU.peak("float16")


def test_groups_cost_more_than_their_flops():
    """32 groups have a 32nd of the FLOP of a dense convolution, but small products waste tensor cores."""
    dense, grouped = forward(), forward(groups=32)
    assert dense.flops == 32 * grouped.flops
    assert seconds(grouped) > seconds(dense) / 8


def test_large_groups_with_channels_last_run_without_tensor_cores():
    assert seconds(forward(groups=2, last=True)) > seconds(forward(groups=2, last=False))


def test_channels_that_tensor_cores_do_not_take_are_padded():
    assert seconds(forward(inputs=60)) > seconds(forward(inputs=64))


def test_gaps_and_other_layouts_are_copied_first():
    call = forward()
    image = call.arguments[0]
    sliced = dataclasses.replace(image, stride=(2 * image.stride[0], 1, *(2 * step for step in image.stride[2:])))
    with_gaps = dataclasses.replace(call, arguments=(sliced, *call.arguments[1:]))
    copy_seconds = 2 * image.bytes / GPU.bandwidth_bytes_per_second + KERNEL_SECONDS
    copied = table()["images"]["padding"] * copy_seconds
    assert seconds(with_gaps) - seconds(call) == pytest.approx(copied)
    gradient = spec(call.outputs[0].shape)
    assert seconds(backward(call, gradient=gradient)) - seconds(backward(call)) == pytest.approx(copied)


@pytest.mark.parametrize("gpu", ["rtx-3090", "a100-80gb", "h100-80gb"])
def test_layouts_are_converted_value_by_value(gpu):
    """As long in fp32 as in fp16, of half the bytes, and beside memory twice as fast."""

    def conversion(costs: PriorCosts, dtype: str, *, last: bool = False) -> float:
        call = forward(dtype=dtype, last=last)
        parts = costs.convolutions(costs._convolution_dtype(call)).parts(call)
        return sum(value for name, value in parts.items() if name.startswith("conversion"))

    costs = PriorCosts(device(gpu))
    bandwidth = costs.device.bandwidth_bytes_per_second
    faster = PriorCosts(costs.device.model_copy(update={"bandwidth_bytes_per_second": 2 * bandwidth}))
    assert conversion(costs, "float16") == conversion(costs, "float32") == conversion(faster, "float16") > 0
    assert conversion(costs, "float16", last=True) == 0


def test_fp32_runs_on_tensor_cores_where_there_is_tf32():
    """`torch.backends.cudnn.allow_tf32` is on by default."""
    call = forward(dtype="float32")
    turing = device("t4")
    assert call.flops / seconds(call) > 1.3 * 0.5 * GPU.peak("float32") * 0.5
    assert call.flops / seconds(call, PriorCosts(turing)) < 1.05 * turing.peak("float32")
    assert seconds(forward(dtype="float16")) < seconds(call)
    a100 = device("a100-40gb")
    assert seconds(call, PriorCosts(a100, tf32_convolutions=False)) > 1.5 * seconds(call, PriorCosts(a100))
    assert seconds(call, PriorCosts(turing)) == seconds(call, PriorCosts(turing, tf32_convolutions=False))


@pytest.mark.parametrize(
    "gpu",
    [row.name for row in devices() if row.segment != "slice" and "float16" in row.peak_flops_per_second][::5],
)
def test_every_gpu_has_plausible_times(gpu):
    costs = PriorCosts(device(gpu))
    for dtype in ("float16", "float32"):
        call = forward(dtype=dtype)
        tf32 = costs.device.peak_flops_per_second.get("tfloat32") if dtype == "float32" else None
        share = call.flops / seconds(call, costs) / (tf32 or costs.device.peak(dtype))
        assert 0.1 < share < 1.05 * ABOVE_STATED_CLOCK
        assert seconds(backward(call), costs) > 1.2 * seconds(call, costs)
