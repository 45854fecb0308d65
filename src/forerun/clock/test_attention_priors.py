"""Attention from priors: published figures, and what the kernels skip."""

import dataclasses

import pytest

from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec
from forerun.units import TERA

A100 = device("a100-40gb")


def within(tokens, documents, met, causal=False, name="forward"):
    """Attention within documents laid end to end; each token meets `met` keys."""
    query = TensorSpec((tokens, 16, 64), (), "bfloat16", 2 * tokens * 16 * 64)
    offsets = TensorSpec((documents + 1,), (1,), "int32", 4 * (documents + 1))
    products = 2 if name == "forward" else 5
    first = (query,) * (3 if name == "forward" else 4)
    arguments = (*first, offsets, offsets, met, met, 0.0, causal, False)
    flops = products * 2 * tokens * 16 * 64 * met
    return Call(f"aten._flash_attention_{name}.default", arguments, (), first, (query,), flops, 0, 0)


def attention(length, causal, name="flash", flops=10**12):
    spec = TensorSpec((4, 16, length, 64), (), "bfloat16", 2 * 4 * 16 * length * 64)
    kernel = f"aten._scaled_dot_product_{name}_attention.default"
    return Call(kernel, (spec, spec, spec, 0.0, causal, False), (), (spec,) * 3, (spec,), flops, 0, 0)


def test_causal_attention_does_half_the_work_and_backward_is_slower():
    costs = PriorCosts(A100)
    full, causal = (costs.device_seconds(attention(2048, c)) for c in (False, True))
    assert 1.5 < full / causal < 2  # of a causal pass blocks on the diagonal are computed whole
    long = [costs.device_seconds(attention(2**16, c)) for c in (False, True)]
    assert long[0] / long[1] == pytest.approx(2, rel=0.05)
    assert costs.device_seconds(attention(2048, False, "flash_backward")) > full
    assert costs.device_seconds(attention(2048, False, "efficient")) > full


@pytest.mark.parametrize(("name", "place"), [("efficient_attention", 6), ("efficient_attention_backward", 11)])
def test_memory_efficient_attention_skips_what_a_causal_mask_hides(name, place):
    """mem_eff_attention/kernel_forward.h:289 and kernel_backward.h:2281 (PyTorch 2.13)."""
    spec = TensorSpec((4, 16, 2048, 64), (), "float16", 2 * 4 * 16 * 2048 * 64)
    full, causal = (
        PriorCosts(device("t4")).device_seconds(
            Call(f"aten._scaled_dot_product_{name}.default", (*(spec,) * 3, *(None,) * (place - 3), is_causal), (),
                 (spec,) * 3, (spec,), 10**12, 0, 0)
        )
        for is_causal in (False, True)
    )  # fmt: skip
    assert 1.2 < full / causal < 2


def of_heads(length, size, name="aten._scaled_dot_product_flash_attention"):
    spec = TensorSpec((16, 32, length, size), (), "bfloat16", 2 * 16 * 32 * length * size)
    flops = 2 * 2 * 16 * 32 * length**2 * size
    return Call(f"{name}.default", (spec, spec, spec, 0.0, True, False), (), (spec,) * 3, (spec,), flops, 0, 0)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("length", "measured"), [(512, 0.672), (1024, 0.723), (2048, 0.806), (4096, 0.868), (8192, 0.912)]
)
def test_heads_of_64_reach_less_of_the_peak_than_heads_of_128(length, measured):
    """Median ratios of rates on an L40S, FlashAttention-2 (NVIDIA AIConfigurator data), 57 to 272 shapes of a length."""
    costs = PriorCosts(device("l40s"))
    narrow, wide = (call.flops / costs.device_seconds(call) for call in (of_heads(length, 64), of_heads(length, 128)))
    assert narrow / wide == pytest.approx(measured, rel=0.1)


@pytest.mark.literature
@pytest.mark.parametrize(("length", "size", "tera"), [(1024, 128, 398), (8192, 128, 656), (8192, 64, 509)])
def test_flash_attention_3_reaches_what_was_measured(length, size, tera):
    """Best rates on an H100 SXM (NVIDIA AIConfigurator data); a fit of all shapes lies below the best of them."""
    call = of_heads(length, size, "forerun._flash_attention_3_forward")
    query = dataclasses.replace(call.inputs[0], shape=(16, length, 32, size))
    call = dataclasses.replace(call, arguments=(*(query,) * 3, *(None,) * 6, True, -1, -1))  # tokens before heads
    rate = call.flops / 2 / PriorCosts(device("h100-80gb")).device_seconds(call) / TERA
    assert 0.75 * tera < rate < 1.05 * tera


SIXTEEN_K = (512, 1024, 2048, 4096, 8192, 16384)
"""Lengths of the bars of Shah et al. 2024, arXiv:2407.08608, figures 5 and 6: 16k tokens in a batch, 2,048 wide."""


def of_figure(kernel, size, length, phase):
    batch, heads = max(1, 16384 // length), 2048 // size
    spec = TensorSpec((batch, heads, length, size), (), "bfloat16", 2 * 16384 * 2048)
    suffix, products = ("_backward", 5) if phase == "backward" else ("", 2)
    flops = products * 2 * batch * heads * length**2 * size
    return Call(
        f"aten._scaled_dot_product_{kernel}_attention{suffix}.default",
        (spec,) * 3,
        (),
        (spec,) * 3,
        (spec,),
        flops,
        0,
        0,
    )


@pytest.mark.literature
@pytest.mark.parametrize(
    ("kernel", "size", "phase", "bars"),
    [
        ("cudnn", 128, "forward", (497, 574, 617, 609, 600, 595)), ("cudnn", 128, "backward", (305, 408, 465, 499, 518, 516)),
        ("cudnn", 64, "forward", (335, 373, 395, 408, 412, 413)), ("cudnn", 64, "backward", (266, 348, 395)),
        ("cudnn", 256, "forward", (470, 546, 580, 581, 580, 581)),
        ("flash", 128, "forward", (309, 350, 362, 368, 370, 370)), ("flash", 128, "backward", (214, 260, 291, 310, 318, 322)),
        ("flash", 64, "forward", (282, 306, 318, 321, 322, 324)), ("flash", 64, "backward", (198, 238, 264)),
        ("flash", 256, "forward", (275, 313, 321, 323, 324, 326)),
    ],
)  # fmt: skip
def test_attention_on_hopper_reaches_what_was_measured(kernel, size, phase, bars):
    """H100 SXM5, no mask; cuDNN of 2024, which later ones surpass by up to 18 %."""
    costs = PriorCosts(device("h100-80gb"))
    calls = [of_figure(kernel, size, length, phase) for length in SIXTEEN_K[: len(bars)]]
    errors = [call.flops / costs.device_seconds(call) / TERA / bar - 1 for call, bar in zip(calls, bars, strict=True)]
    assert sum(map(abs, errors)) / len(errors) < 0.22
    assert max(map(abs, errors)) < 0.4


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "heads", "length", "forward", "backward"),
    [
        ("h200", (64, 128, 128), 4096, 0.465, 1.450), ("gb200", (64, 128, 128), 4096, 0.206, 0.607),
        ("gb300", (64, 128, 128), 16384, 2.235, 7.380), ("h200", (128, 192, 128), 4096, 1.148, 4.424),
        ("gb200", (128, 192, 128), 8192, 1.800, 5.728),
    ],
)  # fmt: skip
def test_cudnn_takes_what_nvidia_measured(gpu, heads, length, forward, backward):
    """Milliseconds of causal passes with cuDNN 9.19 (NVIDIA/cudnn-frontend, sdpa_benchmark_training): the first three
    shapes are fitted, the last two are not, and their backward passes are deterministic."""
    number, size, value_size = heads
    query, value = (TensorSpec((1, number, length, s), (), "bfloat16", 2 * number * length * s) for s in heads[1:])
    costs, flops = PriorCosts(device(gpu)), 2 * number * length**2
    name, tensors = "aten._scaled_dot_product_cudnn_attention", (query, query, value)
    first = Call(
        f"{name}.default", (*tensors, *(None,) * 3, True), (), tensors, (value,), flops * (size + value_size), 0, 0
    )
    second = Call(
        f"{name}_backward.default", (*(query,) * 3, *(None,) * 11, True), (), tensors, (value,),
        flops * (3 * size + 2 * value_size), 0, 0,
    )  # fmt: skip
    tolerance = 0.06 if size == value_size else 0.2
    assert costs.device_seconds(first) * 1e3 == pytest.approx(forward, rel=0.06)
    assert costs.device_seconds(second) * 1e3 == pytest.approx(backward, rel=tolerance)


@pytest.mark.literature
def test_cudnn_is_faster_than_flash_attention_2_on_hopper_only():
    """1.7 to 2.3 times with a backward pass, causal, on an H100 (huggingface/transformers, pull request 48163)."""

    def seconds(gpu, kernel, length):
        costs = PriorCosts(device(gpu))
        forward, backward = (attention(length, False, f"{kernel}{suffix}") for suffix in ("", "_backward"))
        names = [
            call.name.replace(f"{kernel}_backward_attention", f"{kernel}_attention_backward")
            for call in (forward, backward)
        ]
        return sum(
            costs.device_seconds(dataclasses.replace(call, name=name))
            for call, name in zip((forward, backward), names, strict=True)
        )

    for length in (4096, 16384):
        assert 1.5 < seconds("h100-80gb", "flash", length) / seconds("h100-80gb", "cudnn", length) < 2.4
        assert seconds("a100-80gb", "flash", length) == pytest.approx(seconds("a100-80gb", "cudnn", length))


@pytest.mark.literature
@pytest.mark.parametrize(("length", "micro"), [(256, 44.7), (512, 155.5), (1024, 543.4)])
def test_attention_of_an_encoder_takes_what_was_measured(length, micro):
    """32 sequences, 12 heads of 64, no mask: FlashAttention-2 on an L40S (NVIDIA AIConfigurator data)."""
    spec = TensorSpec((32, 12, length, 64), (), "bfloat16", 2 * 32 * 12 * length * 64)
    name, flops = "aten._scaled_dot_product_flash_attention.default", 4 * 32 * 12 * length**2 * 64
    call = Call(name, (spec, spec, spec, 0.0, False, False), (), (spec,) * 3, (spec,), flops, 0, 0)
    assert PriorCosts(device("l40s")).device_seconds(call) * 1e6 == pytest.approx(micro, rel=0.3)


def test_long_sequences_use_the_gpu_better():
    costs = PriorCosts(A100)
    assert costs.device_seconds(attention(4096, False)) < costs.device_seconds(attention(128, False))


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_one_document_each_take_what_plain_attention_takes(causal):
    costs = PriorCosts(A100)
    plain = attention(1024, causal, flops=2 * 2 * 4 * 1024 * 16 * 64 * 1024)
    assert costs.device_seconds(within(4 * 1024, 4, 1024, causal)) == pytest.approx(costs.device_seconds(plain))


def test_shorter_documents_take_less_time_and_backward_takes_more():
    costs = PriorCosts(A100)
    times = [costs.device_seconds(within(2**16, 2**16 // met, met)) for met in (128, 512, 2048)]
    assert times == sorted(times)
    assert times[-1] > 3 * times[0]
    assert costs.device_seconds(within(2**16, 32, 2048, name="backward")) > 2 * times[-1]


@pytest.mark.parametrize(
    ("gpu", "rate"), [("a100-80gb", 156 / 3), ("h100-80gb", 495 / 3), ("t4", 8.1), ("rtx-3090", 35.6)]
)
def test_float32_runs_on_tensor_cores_where_three_products_in_tf32_are_faster(gpu, rate):
    """`OpMultiplyAddFastF32`: of a card's two rates, in TFLOP/s, the higher decides; flash knows no float32."""
    spec = TensorSpec((8, 16, 4096, 64), (), "float32", 4 * 8 * 16 * 4096 * 64)
    half = TensorSpec((8, 16, 4096, 64), (), "float16", 2 * 8 * 16 * 4096 * 64)
    name = "aten._scaled_dot_product_efficient_attention.default"
    costs, flops = PriorCosts(device(gpu)), 4 * 8 * 16 * 4096**2 * 64
    whole, sixteen = (
        costs.device_seconds(Call(name, (s, s, s, None, True, 0.0, False), (), (s,) * 3, (s,), flops, 0, 0))
        for s in (spec, half)
    )
    assert whole / sixteen == pytest.approx(device(gpu).peak("float16") / (rate * TERA), rel=0.03)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("gpu", "length", "forward", "backward", "tolerance"),
    [("gb200", 8192, 5.308, 16.249, 0.04), ("gb300", 8192, 5.356, 16.654, 0.04), ("b200", 16384, 22.297, 68.724, 0.08)],
)
def test_flash_attention_2_on_blackwell_takes_what_nvidia_measured(gpu, length, forward, backward, tolerance):
    """Milliseconds of PyTorch's kernel, causal, 128 heads of 128 (NVIDIA/cudnn-frontend, sdpa_benchmark_training): lengths
    and a GPU that nothing was fitted to."""
    spec = TensorSpec((1, 128, length, 128), (), "bfloat16", 2 * 128 * length * 128)
    costs, flops, name = PriorCosts(device(gpu)), 4 * 128 * length**2 * 128, "_scaled_dot_product_flash_attention"
    passes = {f"aten.{name}.default": ((spec,) * 3, flops), f"aten.{name}_backward.default": ((spec,) * 5, 2.5 * flops)}
    rest = {
        f"aten.{name}.default": (0.0, True),
        f"aten.{name}_backward.default": (None,) * 3 + (length, length, 0.0, True),
    }
    for (kernel, (tensors, work)), measured in zip(passes.items(), (forward, backward), strict=True):
        call = Call(kernel, (*tensors, *rest[kernel]), (), tensors, (spec,), int(work), 0, 0)
        assert costs.device_seconds(call) * 1e3 == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "passes", "published"),
    [
        # PyTorch's kernel: AMD's own takes 1.19 and 4.17 ms (AMD-AGI/Primus-Turbo, 32 heads of 8,192 tokens with a mask),
        # and cuts the latency by 47 and 75 % (rocm.blogs.amd.com, Deep Dive into Primus).
        ("mi300x", "forward", 1.19 / 0.53), ("mi300x", "backward", 4.17 / 0.25),
        # HipKittens (arXiv:2511.08083): PyTorch's pass back reaches 24 % of the best, some 1,000 TFLOP/s.
        ("mi355x", "backward", 2.5 * 2 * 8192**2 * 32 * 128 / (0.24 * 1000 * TERA) * 1e3),
    ],
)  # fmt: skip
def test_attention_of_amd_takes_what_pytorch_takes_there(name, passes, published):
    spec = TensorSpec((1, 32, 8192, 128), (), "bfloat16", 2 * 32 * 8192 * 128)
    is_backward = passes == "backward"
    flops = 2 * 32 * 8192**2 * 128 * (5 if is_backward else 2)
    arguments = (*(spec,) * 5, None, None, None, 8192, 8192, 0.0, True) if is_backward else (*(spec,) * 3, 0.0, True)
    operator = "aten._scaled_dot_product_flash_attention" + ("_backward" if is_backward else "")
    call = Call(f"{operator}.default", arguments, (), (spec,) * 3, (spec,), flops, 0, 0)
    assert PriorCosts(device(name)).device_seconds(call) * 1e3 == pytest.approx(published, rel=0.15)
