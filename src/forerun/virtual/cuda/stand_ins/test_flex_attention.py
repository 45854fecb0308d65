"""FlexAttention as eager code: plain arithmetic, which holds scores of every query and key."""

import pytest
import torch

import forerun


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_without_compiling_every_score_is_held():
    with forerun.virtual_cuda("h100-80gb") as gpu:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        slopes = torch.ones(4, device="cuda")
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
        q = torch.randn(2, 4, 256, 32, device="cuda", requires_grad=True)
        out = flex_attention(q, q, q, lambda score, b, h, i, j: score + slopes[h] * (j - i), mask)
        out.sum().backward()
        assert out.shape == q.grad.shape == q.shape
    assert gpu.memory.peak_allocated_bytes > 3 * (2 * 4 * 256 * 256 * 4)
    assert not any("flex" in call.name for call in gpu.trace.calls)


def test_a_mask_that_is_compiled_leaves_the_names_of_the_device_in_force():
    with forerun.virtual_cuda("h100-80gb"):
        from torch.nn.attention.flex_attention import create_block_mask

        mask = torch.compile(create_block_mask)(lambda b, h, q, k: q >= k, 2, None, 256, 256)
        assert mask.kv_num_blocks.is_cuda
        assert torch.zeros(2, device="cuda").is_cuda
