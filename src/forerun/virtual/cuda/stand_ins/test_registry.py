"""Kernels that a program registers: shapes, gradients and work are what it says."""

import pytest
import torch

import forerun
from forerun.virtual.cuda.stand_ins.registry import HOW_TO, stand_in


def operators(gpu, name):
    return [gpu.trace.calls[op.call] for op in gpu.trace.ops if name in gpu.trace.calls[op.call].name]


def test_the_lines_that_the_error_shows_register_a_kernel():
    scope = {}
    exec(HOW_TO.format(name="someones.kernel").replace("\n    ", "\n"), scope)
    with forerun.virtual_cuda("t4") as gpu:
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        scope["shapes"](x).sum().backward()
        assert x.grad.shape == x.shape
    forward, backward = operators(gpu, "someones_kernel")
    assert (forward.flops, backward.flops) == (64, 128)
    assert forward.bytes_written == 4 * 8 * 4


def test_a_kernel_without_gradient_says_so():
    @stand_in("one.way")
    def shapes(x):
        return torch.empty_like(x)

    with forerun.virtual_cuda("t4"):
        x = torch.randn(4, device="cuda", requires_grad=True)
        with pytest.raises(NotImplementedError, match=r"one\.way.*no gradient"):
            shapes(x)
        with torch.no_grad():
            assert shapes(x).shape == (4,)


def test_a_registered_function_of_a_stand_in_package_can_be_imported():
    @stand_in("flash_attn.flash_attn_interface.flash_attn_of_mine")
    def shapes(x):
        return x.new_empty(x.shape[0])

    with forerun.virtual_cuda("a100-40gb"):
        from flash_attn.flash_attn_interface import flash_attn_of_mine

        assert flash_attn_of_mine(torch.zeros(3, 2, device="cuda")).shape == (3,)
