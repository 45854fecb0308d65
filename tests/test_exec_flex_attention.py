"""FlexAttention in a user's compiled program: the blocks that a mask keeps, which decide its time."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import forerun


def causal(tokens):
    return lambda b, h, q, k: q >= k


def window(tokens):
    return lambda b, h, q, k: (q >= k) & (q - k < 300)


def of_each_head(tokens):
    return lambda b, h, q, k: (q - k).abs() < 100 * (h + 1)


def documents(tokens):
    number = (tokens == 7).cumsum(1)
    return lambda b, h, q, k: (q >= k) & (number[b, q] == number[b, k])


def prefix(tokens):
    length = (tokens == 7).sum(1) * 40
    return lambda b, h, q, k: (q >= k) | (k < length[b])


def forecast_flops(mask_of, tokens, batch, heads, length, layers=1):
    """FLOP of each layer's forward kernel, and what was assumed."""
    with forerun.virtual_cuda("h100-80gb") as gpu:
        mask = create_block_mask(mask_of(tokens.to("cuda")), batch, heads, length, length, device="cuda")
        query = torch.empty(len(tokens), 4, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        compiled = torch.compile(flex_attention)
        for _ in range(layers):
            compiled(query, query, query, block_mask=mask).sum().backward()
    assert gpu.compiled_eagerly == {}
    calls = [gpu.trace.calls[op.call] for op in gpu.trace.ops]
    forward = [call.flops for call in calls if "flex_attention_forward" in call.name]
    backward = [call.flops for call in calls if "flex_attention_backward" in call.name]
    assert backward == [pytest.approx(5 / 2 * flops) for flops in forward]
    return forward, gpu.assumed


@pytest.mark.parametrize(
    ("mask_of", "batch", "heads", "length"),
    [
        (causal, None, None, 2048), (window, None, None, 2048), (of_each_head, None, 4, 1280), (documents, 3, None, 1536),
        (documents, 3, None, 1100), (prefix, 3, None, 1536), (window, None, None, 1300),
    ],
)  # fmt: skip
def test_blocks_of_a_large_mask_are_those_that_pytorch_counts(mask_of, batch, heads, length):
    """The whole mask has more numbers than are followed, so its function is asked row by row."""
    tokens = torch.randint(0, 500, (3, length), generator=torch.Generator().manual_seed(1))
    real = create_block_mask(mask_of(tokens), batch, heads, length, length, device="cpu")
    blocks = (real.kv_num_blocks.sum() + real.full_kv_num_blocks.sum()).item()
    pairs = 3 * 4 / (real.shape[0] * real.shape[1]) * 128**2 * blocks
    flops, assumed = forecast_flops(mask_of, tokens, batch, heads, length, layers=2)
    assert flops == [pytest.approx(2 * 2 * 64 * min(pairs, 3 * 4 * length**2))] * 2
    assert not any("FlexAttention" in what for what in assumed)


def test_some_rows_of_a_long_sequence_stand_for_all():
    length, window_blocks = 2**15, 4  # 300 positions before a block reach into three others
    flops, _ = forecast_flops(window, torch.zeros(1, 8, dtype=torch.long), None, None, length)
    assert flops == [pytest.approx(2 * 2 * 64 * 4 * window_blocks * 128**2 * length / 128, rel=0.01)]


def test_what_nobody_knows_is_said():
    def unknown(tokens):
        number = torch.randn(3, 1536, device="cuda").cumsum(1)  # more floating numbers than are followed
        return lambda b, h, q, k: number[b, q] < number[b, k]

    flops, assumed = forecast_flops(unknown, torch.zeros(3, 8, dtype=torch.long), 3, None, 1536)
    assert flops == [2 * 2 * 64 * 3 * 4 * 1536**2]
    assert any("FlexAttention's mask keeps, answered with all of them" in what for what in assumed)
