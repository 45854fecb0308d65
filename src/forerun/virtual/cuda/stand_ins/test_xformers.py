"""xformers: FlashAttention where the card has it, the memory-efficient kernel elsewhere."""

import pytest
import torch

import forerun
from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device


def names(gpu):
    return {call.name for call in gpu.trace.calls}


@pytest.mark.parametrize(
    ("gpu", "dtype", "kernel"),
    [
        ("a100-40gb", torch.bfloat16, "forerun._flash_attention_2_backward.default"),
        ("a100-40gb", torch.float32, "aten._scaled_dot_product_efficient_attention_backward.default"),
        ("t4", torch.float16, "aten._scaled_dot_product_efficient_attention_backward.default"),
    ],
)
def test_kernel(gpu, dtype, kernel):
    with forerun.virtual_cuda(gpu) as card:
        import xformers.ops as xops

        q = torch.randn(2, 64, 8, 32, device="cuda", dtype=dtype, requires_grad=True)
        out = xops.memory_efficient_attention(q, q, q, attn_bias=xops.LowerTriangularMask())
        out.sum().backward()
        assert out.shape == q.grad.shape == q.shape
        assert xops.memory_efficient_attention(q[:, :, 0], q[:, :, 0], q[:, :, 0]).shape == (2, 64, 32)
    assert kernel in names(card)


@pytest.mark.parametrize(
    ("gpu", "kernel"),
    [("a100-40gb", "forerun._flash_attention_2_{}.default"), ("t4", "aten._efficient_attention_{}.default")],
)
def test_documents_attend_within_themselves(gpu, kernel):
    """FLOP of eight documents of 64 tokens are an eighth of those of one of 512."""

    def work(lengths):
        with forerun.virtual_cuda(gpu) as card:
            from xformers.ops import fmha

            q = torch.randn(1, 512, 8, 32, device="cuda", dtype=torch.float16, requires_grad=True)
            mask = fmha.attn_bias.BlockDiagonalCausalMask.from_seqlens(lengths)
            out = fmha.memory_efficient_attention(q, q, q, attn_bias=mask)
            out.sum().backward()
            assert out.shape == q.grad.shape == q.shape
        calls = {call.name: call for call in card.trace.calls if "attention_" in call.name}
        found = [calls[kernel.format(each)] for each in ("forward", "backward")]
        return sum(call.flops for call in found), [PriorCosts(device(gpu)).device_seconds(call) for call in found]

    (flops, seconds), (whole, longer) = work([64] * 8), work([512])
    assert whole == pytest.approx(8 * flops)
    assert all(few < many for few, many in zip(seconds, longer, strict=True))


@pytest.mark.parametrize(("gpu", "copies"), [("a100-40gb", 0), ("t4", 2)])
def test_groups_of_heads_are_expanded_where_the_kernel_has_none(gpu, copies):
    with forerun.virtual_cuda(gpu) as card:
        import xformers.ops as xops

        q = torch.zeros(2, 64, 2, 4, 32, device="cuda", dtype=torch.float16)
        k = torch.zeros(2, 64, 2, 1, 32, device="cuda", dtype=torch.float16).expand(2, 64, 2, 4, 32)
        before = len(card.trace.ops)
        assert xops.memory_efficient_attention(q, k, k, attn_bias=xops.LowerTriangularMask()).shape == q.shape
        names = [card.trace.calls[op.call].name for op in card.trace.ops[before:]]
    assert names.count("aten.clone.default") == copies


def test_swiglu_is_one_launch_between_products():
    with forerun.virtual_cuda("t4") as card:
        from xformers.ops import SwiGLU

        layer = SwiGLU(64, 128).cuda()
        layer(torch.zeros(4, 64, device="cuda")).sum().backward()
        assert layer.w12.weight.grad.shape == (256, 64)
    assert "forerun.xformers_silu_mul_backward.default" in names(card)


def test_masks_without_stand_in_are_named():
    with forerun.virtual_cuda("t4"):
        import xformers.ops as xops

        q = torch.zeros(1, 8, 1, 8, device="cuda", dtype=torch.float16)
        with pytest.raises(NotImplementedError, match="memory_efficient_attention with"):
            xops.memory_efficient_attention(q, q, q, attn_bias=object())
