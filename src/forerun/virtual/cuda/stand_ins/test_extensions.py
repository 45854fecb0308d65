"""Extensions of CUDA sources on the virtual GPU."""

import sys

import pytest
import torch

import forerun
from forerun.virtual.cuda.stand_ins.registry import stand_in

CUDA_SOURCE = "torch::Tensor scale(torch::Tensor x) { return x; }"


@pytest.mark.parametrize("is_imported_before", [True, False])
def test_a_function_of_an_extension_is_its_stand_in(monkeypatch, is_imported_before):
    if not is_imported_before:
        monkeypatch.delitem(sys.modules, "torch.utils.cpp_extension", raising=False)
        monkeypatch.delattr(torch.utils, "cpp_extension", raising=False)

    @stand_in("scaling.scale", flops=lambda x: x.numel())
    def scale(x):
        return torch.empty_like(x)

    @scale.gradient
    def gradients(arguments, upstream):
        return torch.empty_like(arguments[0])

    with forerun.virtual_cuda("t4") as gpu:
        from torch.utils.cpp_extension import load_inline

        extension = load_inline("scaling", cpp_sources="", cuda_sources=CUDA_SOURCE, functions=["scale"])
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        extension.scale(x).sum().backward()
        assert x.grad.shape == (64, 64)
    assert gpu.clock.hardware_flops == 3 * 64 * 64


def test_a_function_that_nobody_registered_says_how_to():
    with forerun.virtual_cuda("t4"):
        from torch.utils import cpp_extension

        extension = cpp_extension.load("rotary", ["rotary.cpp", "rotary_kernel.cu"])
        with pytest.raises(NotImplementedError, match=r"rotary\.apply.*\n(.*\n)*.*@stand_in"):
            extension.apply(torch.zeros(4, device="cuda"))
    assert cpp_extension.load.__module__ == "torch.utils.cpp_extension"
