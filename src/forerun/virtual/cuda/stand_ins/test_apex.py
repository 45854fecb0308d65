"""apex: optimizer state by hand, one launch for all parameters."""

import pytest
import torch
from torch import nn

import forerun


def operators(gpu, name):
    return [gpu.trace.calls[op.call] for op in gpu.trace.ops if name in gpu.trace.calls[op.call].name]


@pytest.mark.parametrize("name", ["FusedAdam", "FusedLAMB"])
def test_fused_optimizers_keep_two_moments(name):
    with forerun.virtual_cuda("t4") as gpu:
        import apex.optimizers

        model = nn.Linear(1024, 1024).cuda()
        optimizer = getattr(apex.optimizers, name)(model.parameters(), lr=1e-3)
        model(torch.zeros(1, 1024, device="cuda")).sum().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        state = torch.cuda.memory_allocated() - before
        optimizer.step()
    assert state == pytest.approx(2 * 4 * (1024 * 1024 + 1024), abs=2048)
    assert len(operators(gpu, "apex_multi_tensor_adam" if name == "FusedAdam" else "apex_multi_tensor_lamb")) == 2


def test_normalisations_keep_their_input_and_their_statistics():
    with forerun.virtual_cuda("t4") as gpu:
        from apex.normalization import FusedLayerNorm, FusedRMSNorm

        x = torch.randn(64, 512, device="cuda", requires_grad=True)
        for norm in (FusedLayerNorm(512).cuda(), FusedRMSNorm(512).cuda()):
            before = torch.cuda.memory_allocated()
            out = norm(x)
            assert torch.cuda.memory_allocated() - before <= 4 * 64 * 512 + 2 * 512
            out.sum().backward()
            assert norm.weight.grad.shape == (512,)
    assert len(operators(gpu, "apex_layer_norm")) == len(operators(gpu, "apex_rms_norm")) == 2


def test_the_rest_of_apex_is_named():
    with forerun.virtual_cuda("t4"), pytest.raises(ImportError, match=r"(?s)apex\.amp.*stand_in"):
        import apex.amp  # noqa: F401


def test_megatrons_layer_normalisation_is_one_kernel():
    with forerun.virtual_cuda("t4") as gpu:
        from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction

        x = torch.randn(64, 512, device="cuda", requires_grad=True)
        weight, bias = torch.ones(512, device="cuda", requires_grad=True), torch.zeros(512, device="cuda")
        FusedLayerNormAffineFunction.apply(x, weight, bias, 512, 1e-5, False).sum().backward()
        assert weight.grad.shape == (512,)
        with pytest.raises(NotImplementedError, match="memory_efficient"):
            FusedLayerNormAffineFunction.apply(x, weight, bias, 512, 1e-5, True)
    assert len(operators(gpu, "apex_layer_norm")) == 2
