"""Which attention kernel a target runs, case by case from PyTorch's dispatcher."""

from dataclasses import replace

import pytest
import torch

import forerun
from forerun.hardware.catalogue import device
from forerun.virtual.attention import AttentionCall, AttentionTarget, choose

PLAIN = AttentionCall(torch.bfloat16, False, 0.0, True, 512, 512, 8, 8, 64, 64)
T4, A100, ADA, H100, B200, B300, RTX_50 = (
    AttentionTarget("cuda", c) for c in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
)
CPU = AttentionTarget("cpu", (0, 0))


@pytest.mark.parametrize(
    ("change", "target", "kernel"),
    [
        ({}, A100, "flash"),
        ({}, H100, "cudnn"),
        ({"head_size": 256, "value_size": 256}, H100, "cudnn"),
        ({"head_size": 256, "value_size": 256}, B200, "flash"),
        ({"head_size": 192, "value_size": 128}, B200, "cudnn"),
        ({"head_size": 192, "value_size": 128}, H100, "cudnn"),
        ({"head_size": 192, "value_size": 128}, A100, "efficient"),
        ({"head_size": 96, "value_size": 64}, B300, "cudnn"),
        ({}, B300, "cudnn"),
        ({"head_size": 192, "value_size": 128}, B300, "cudnn"),
        ({"head_size": 192, "value_size": 192}, B300, "flash"),
        ({}, RTX_50, "flash"),
        ({"has_mask": True}, A100, "efficient"),
        ({"has_mask": True}, H100, "cudnn"),
        ({"has_mask": True, "mask_needs_gradient": True}, H100, "efficient"),
        ({"dtype": torch.float32, "has_mask": True, "mask_needs_gradient": True}, CPU, "math"),
        ({"dtype": torch.float32}, A100, "efficient"),
        ({"dtype": torch.float32}, H100, "efficient"),
        ({"dtype": torch.float16}, T4, "efficient"),
        ({"dtype": torch.bfloat16}, T4, "math"),
        ({"key_heads": 2, "groups_heads": True}, A100, "flash"),
        ({"key_heads": 1}, A100, "math"),
        ({"dtype": torch.float32, "key_heads": 1}, CPU, "math"),
        ({"key_heads": 2, "has_mask": True}, A100, "math"),
        ({"query_length": 1}, ADA, "efficient"),
        ({"head_size": 60, "value_size": 60}, A100, "math"),
        ({"dimensions": 5}, A100, "math"),
        ({"same_batch": False}, H100, "math"),
        ({"dimensions": 3}, H100, "math"),
        ({"dropout": 0.1}, A100, "flash"),
        ({"has_mask": True, "has_gaps": True}, A100, "math"),
        ({"has_mask": True, "has_gaps": True}, H100, "math"),
        ({"dtype": torch.float32}, CPU, "flash"),
        ({"dtype": torch.float32, "dropout": 0.1}, CPU, "math"),
    ],
)
def test_kernel(change, target, kernel):
    assert choose(replace(PLAIN, **change), target) == kernel


def test_a_forced_kernel_is_taken_when_it_can():
    assert choose(PLAIN, replace(A100, forced="sdpa:efficient")) == "efficient"
    assert choose(replace(PLAIN, has_mask=True), replace(A100, forced="sdpa:flash")) == "math"


@pytest.mark.parametrize(("warn_only", "kernel"), [(False, "flash"), (True, "cudnn")])
def test_deterministic_algorithms_rule_cudnn_out(warn_only, kernel):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        assert choose(PLAIN, H100) == kernel
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_older_torch_changes_the_order_and_not_the_card():
    """FlashAttention-3 and copies for TF32 ask for the capability too."""
    old = replace(H100, device=device("h100-80gb").model_copy(update={"prefers_cudnn": False}))
    assert (choose(PLAIN, old), choose(PLAIN, replace(old, forced="sdpa:cudnn"))) == ("flash", "cudnn")
    third = {"name": "old", "workload": "causal-lm", "precision": "bf16-true", "data": {"examples": 8},
             "batch": {"micro_batch_size": 2, "sequence_length": 64}, "versions": {"torch": "2.8"},
             "model": {"name": "tiny-llama", "attention": "flash_attention_3"}}  # fmt: skip
    assert forerun.forecast(third, gpu="h100-80gb").fits


def test_cudnn_is_taken_by_request_from_ampere_on():
    assert choose(PLAIN, replace(A100, forced="sdpa:cudnn")) == "cudnn"
    assert choose(PLAIN, replace(A100, forced="sdpa")) == "flash"
    assert choose(replace(PLAIN, dtype=torch.float16), replace(T4, forced="sdpa:cudnn")) == "math"


@pytest.mark.golden
def test_a_permuted_bias_is_added_by_arithmetic():
    """T5's, (heads, query, key) seen through (query, key, heads): 25 % of a step's memory on an H100 (docs/log.md)."""
    with forerun.virtual_cuda("h100-80gb") as gpu:
        query = torch.zeros(2, 8, 32, 64, device="cuda", dtype=torch.bfloat16)
        values = torch.zeros(32, 32, 8, device="cuda", dtype=torch.bfloat16)
        for bias in (values.permute(2, 0, 1).unsqueeze(0), values.permute(2, 0, 1).unsqueeze(0).contiguous()):
            torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=bias)
        names = {gpu.trace.calls[op.call].name for op in gpu.trace.ops}
    assert "aten.bmm.default" in names
    assert "aten._scaled_dot_product_cudnn_attention.default" in names


def test_prefixes_of_one_row_are_broadcast_by_arithmetic():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        query = torch.zeros(4, 8, 96, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        prefix = torch.zeros(1, 8, 10, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(query, prefix, prefix).sum().backward()
        assert prefix.grad is not None
        assert prefix.grad.shape == prefix.shape
    assert not any("flash" in call.name for call in gpu.trace.calls)


@pytest.mark.parametrize("shape", [(2, 3, 4, 16, 8), (4, 16, 8), (16, 8)])
def test_attention_of_windows_or_of_one_sequence_is_arithmetic(shape):
    with forerun.virtual_cuda("a100-80gb"):
        query = torch.randn(shape, device="cuda", requires_grad=True)
        result = torch.nn.functional.scaled_dot_product_attention(query, query, query)
        result.sum().backward()
    assert result.shape == query.grad.shape == shape


@pytest.mark.parametrize("key_heads", [8, 2])
def test_flop_of_attention_are_those_of_every_head_of_the_queries(key_heads):
    """QKᵀ and PV forward; backward QKᵀ again, and the gradients of P, V, Q and K."""
    with forerun.virtual_cuda("a100-80gb") as gpu:
        q = torch.randn(2, 8, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k = torch.randn(2, key_heads, 96, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        v = torch.randn_like(k, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=key_heads != 8).sum().backward()
    flops = {call.name: call.flops for call in gpu.trace.calls if "_scaled_dot_product_flash" in call.name}
    product = 2 * 2 * 8 * 64 * 96 * 32
    assert list(flops.values()) == [2 * product, 5 * product]
