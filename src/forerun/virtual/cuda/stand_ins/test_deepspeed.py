"""DeepSpeed's compiled optimizers on the virtual GPU, called as its Python does (0.19.8)."""

import pytest
import torch

import forerun

MIB = 2**20
NUMBERS = (1e-3, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)


def loaded(name, *sources):
    from torch.utils import cpp_extension

    return cpp_extension.load(name, list(sources))


def moved_bytes(gpu, operator):
    calls = [call for call in gpu.trace.calls if operator in call.name]
    return [(call.bytes_read, call.bytes_written) for call in calls]


@pytest.mark.parametrize(("name", "moments"), [("adam", 2), ("lion", 1)])
def test_one_launch_updates_all_parameters(name, moments):
    with forerun.virtual_cuda("a100-40gb") as gpu:
        extension = loaded(f"fused_{name}", "frontend.cpp", f"multi_tensor_{name}.cu")
        lists = [[torch.zeros(MIB, device="cuda") for _ in range(3)] for _ in range(2 + moments)]
        getattr(extension, f"multi_tensor_{name}")(2048, torch.zeros(1, device="cuda"), lists, *NUMBERS)
    tensor = 3 * 4 * MIB
    assert moved_bytes(gpu, f"multi_tensor_{name}") == [((2 + moments) * tensor, (1 + moments) * tensor)]


def test_lamb_returns_its_coefficient():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        extension = loaded("fused_lamb", "fused_lamb_cuda.cpp", "fused_lamb_cuda_kernel.cu")
        weight, first, second, gradient = (torch.zeros(MIB, device="cuda") for _ in range(4))
        coefficient = extension.lamb(weight, torch.tensor([]), first, second, gradient, *NUMBERS)
        assert (coefficient.shape, coefficient.is_cuda) == ((1,), True)
    assert len(moved_bytes(gpu, "deepspeed_lamb")) == 2


@pytest.mark.parametrize("name", ["adam", "lion", "adagrad"])
def test_updates_on_the_host_are_not_compiled(name):
    """Their sources are C++ alone, and would write into memory that is not there."""
    with forerun.virtual_cuda("a100-40gb"):
        extension = loaded(f"cpu_{name}", f"cpu_{name}.cpp")
        weight = torch.zeros(MIB, device="cuda").to("cpu")
        assert getattr(extension, f"create_{name}")(0, 1e-3) == 0
        assert getattr(extension, f"{name}_update")(0, 1, weight, weight) == 0
        with pytest.raises(NotImplementedError, match=rf"cpu_{name}\.another"):
            extension.another(weight)
