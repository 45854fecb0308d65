"""Liger's kernels by hand: what is kept, what is launched, what is never there."""

import pytest
import torch

import forerun

TOKENS, SIZE, VOCABULARY = 4096, 512, 32_768


def operators(gpu, name):
    return [gpu.trace.calls[op.call] for op in gpu.trace.ops if name in gpu.trace.calls[op.call].name]


def test_the_fused_loss_keeps_gradients_and_one_chunk_of_logits():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        hidden = torch.randn(TOKENS, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        weight = torch.randn(VOCABULARY, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        target = torch.zeros(TOKENS, dtype=torch.long, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = LigerFusedLinearCrossEntropyLoss()(weight, hidden, target)
        kept, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
        loss.backward()
        assert (hidden.grad.shape, weight.grad.shape) == (hidden.shape, weight.shape)
    gradients = 2 * SIZE * (TOKENS + VOCABULARY)
    assert kept == pytest.approx(gradients, rel=0.01)
    chunk = TOKENS // (VOCABULARY // SIZE)  # its logits take as much as all hidden states
    assert peak == pytest.approx(gradients + 2 * chunk * VOCABULARY + 4 * TOKENS, rel=0.02)
    assert len(operators(gpu, "liger_cross_entropy")) == TOKENS // chunk


def test_small_kernels_write_gradients_over_what_is_there():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        from liger_kernel.transformers import LigerCrossEntropyLoss, LigerRMSNorm

        x = torch.randn(64, 512, device="cuda", requires_grad=True)
        LigerRMSNorm(512).cuda()(x).sum().backward()
        logits = torch.randn(64, 1000, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        loss = LigerCrossEntropyLoss()(logits * 1, torch.zeros(64, dtype=torch.long, device="cuda"))
        assert (
            torch.cuda.memory_allocated() - before < 1.1 * 4 * 64 * 1000
        )  # the product's result, no gradient beside it
        loss.backward()
        assert logits.grad.shape == logits.shape
    assert len(operators(gpu, "liger_rms_norm")) == 2
