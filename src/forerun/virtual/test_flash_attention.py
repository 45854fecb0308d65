"""FlashAttention's packages: what they keep, what they compute, where they run; and what `clock` takes for causal."""

import pytest
import torch

import forerun
from forerun.clock.costs import CAUSAL_ARGUMENT
from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec
from forerun.virtual.flash_attention import FlashOptions, attend

B, T, H, D = 2, 512, 16, 64
ALONE = (None, None)


def calls(gpu, part):
    return [gpu.trace.calls[op.call] for op in gpu.trace.ops if part in gpu.trace.calls[op.call].name]


def inputs(key_heads=H, size=D, length=T, dtype=torch.bfloat16):
    shapes = ((B, length, H, size), (B, length, key_heads, size), (B, length, key_heads, size))
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", CAUSAL_ARGUMENT)
def test_is_causal_is_where_the_schema_has_it(name):
    owner = torch.ops.forerun if hasattr(torch.ops.forerun, name) else torch.ops.aten
    places = [
        i
        for i, a in enumerate(getattr(owner, name).default._schema.arguments)
        if "causal" in a.name or "mask_type" in a.name
    ]
    assert places == [CAUSAL_ARGUMENT[name]]


@pytest.mark.parametrize("gpu", ["h100-80gb", "b200"])
def test_training_with_cudnn_is_not_taken_for_causal(gpu):
    """Its schema has `compute_log_sumexp`, true in training, before `is_causal`."""
    spec = TensorSpec((4, 16, 8192, 64), (), "bfloat16", 2 * 4 * 16 * 8192 * 64)

    def seconds(causal):
        arguments = (spec, spec, spec, None, True, 0.0, causal, False)
        name = "aten._scaled_dot_product_cudnn_attention.default"
        return PriorCosts(device(gpu)).device_seconds(Call(name, arguments, (), (spec,) * 3, (spec,), 10**12, 0, 0))

    assert 1.3 * seconds(True) < seconds(False) < 2 * seconds(True)  # a causal pass wastes half of its diagonal blocks


def test_memory_is_output_and_sums_and_grouped_heads_are_not_repeated():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        q, k, v = inputs(key_heads=4)
        before = torch.cuda.memory_allocated()
        out, sums = attend(q, k, v, ALONE, FlashOptions(causal=True))
        after = torch.cuda.memory_allocated()
        out.sum().backward()
    assert after - before == 2 * B * T * H * D + 4 * B * H * T + 512  # the generator's state takes one block
    assert sums.dtype == torch.float32
    assert (q.grad.shape, k.grad.shape) == (q.shape, k.shape)
    forward, backward = calls(gpu, "_flash_attention_2_")
    assert (forward.flops, backward.flops) == (4 * B * H * T * T * D, 10 * B * H * T * T * D)


def test_a_sliding_window_counts_only_its_pairs():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        attend(*inputs(), ALONE, FlashOptions(causal=True, left=99))
    # every token sees itself and 99 before it, the first 99 fewer
    pairs = T * 100 - sum(range(100))
    assert calls(gpu, "_flash_attention_2_")[0].flops == 4 * B * H * D * pairs


def test_documents_of_known_lengths_are_counted_one_by_one():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        q, k, v = (each.flatten(0, 1) for each in inputs())
        offsets = torch.tensor([0, 100, 300, 1024], dtype=torch.int32, device="cuda")
        out, _ = attend(q, k, v, (offsets, offsets), FlashOptions(longest=(724, 724)))
        out.sum().backward()
    assert calls(gpu, "_2_forward")[0].flops == 4 * H * D * (100**2 + 200**2 + 724**2)


def test_heads_are_padded_to_multiples_of_eight():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        q, k, v = inputs(size=60)
        out, _ = attend(q, k, v, ALONE, FlashOptions())
        out.sum().backward()
    assert out.shape[-1] == q.grad.shape[-1] == 60
    assert calls(gpu, "_2_forward")[0].inputs[0].shape[-1] == 64


@pytest.mark.parametrize(
    ("gpu", "version", "dtype", "words"),
    [
        ("t4", 2, torch.float16, "compute capability 8.0"),
        ("a100-80gb", 3, torch.bfloat16, "compute capability 9.0"),
        ("b200", 3, torch.bfloat16, "compute capability 9.0 exactly"),
        ("a100-80gb", 2, torch.float32, "fp16 and bf16"),
    ],
)
def test_what_it_has_no_kernel_for_is_refused_by_name(gpu, version, dtype, words):
    with forerun.virtual_cuda(gpu), pytest.raises(RuntimeError, match=words):
        attend(*inputs(dtype=dtype), ALONE, FlashOptions(version))


def test_version_three_is_faster_on_hopper():
    seconds = {}
    for version in (2, 3):
        with forerun.virtual_cuda("h100-80gb") as gpu:
            attend(*inputs(length=4096), ALONE, FlashOptions(version, causal=True))
        seconds[version] = PriorCosts(device("h100-80gb")).device_seconds(calls(gpu, "_forward")[0])
    assert 1.5 < seconds[2] / seconds[3] < 2.5


def test_it_costs_what_pytorchs_own_kernel_costs():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        q, k, v = inputs()
        attend(q, k, v, ALONE, FlashOptions(causal=True))[0].sum().backward()
        q, k, v = (each.detach().transpose(1, 2).requires_grad_() for each in (q, k, v))
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    costs = PriorCosts(device("a100-80gb"))
    for name in ("forward", "backward"):
        own = calls(gpu, f"_flash_attention_2_{name}")[0]
        suffix = "_backward" if name == "backward" else ""
        torchs = calls(gpu, f"aten._scaled_dot_product_flash_attention{suffix}.default")[0]
        assert own.flops == torchs.flops, name
        assert costs.device_seconds(own) == pytest.approx(costs.device_seconds(torchs), rel=0.01)
