"""xformers: FlashAttention where the card has it, the memory-efficient kernel elsewhere."""

import pytest
import torch

import forerun


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
