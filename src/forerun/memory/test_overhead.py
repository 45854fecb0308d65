"""Memory outside tensors: readings of contexts, and which steps load cuDNN."""

import pytest

from forerun.hardware.catalogue import device
from forerun.memory.overhead import outside_bytes, uses_cudnn, workspace_bytes
from forerun.trace import Call, Trace
from forerun.units import MIB


@pytest.mark.literature
@pytest.mark.parametrize(("gpu", "mib"), [("rtx-3090", 1486), ("v100-32gb", 1007)])
def test_an_old_cuda_loads_all_kernels_with_the_context(gpu, mib):
    """pytorch/pytorch#49877 (an RTX 3090) and #28394 (a Titan V); since CUDA 11.7 kernels are loaded when needed."""
    today, same, old = (outside_bytes(device(gpu, cuda), 1) for cuda in ("", "11.7", "11.3"))
    assert today == same
    assert old.expected == mib * MIB
    assert today.conservative < old.optimistic


def test_cudnn_loads_its_kernels_under_an_old_cuda():
    today, old = (
        outside_bytes(gpu, 1, with_cudnn=True).expected - outside_bytes(gpu, 1).expected
        for gpu in (device("a100-40gb"), device("a100-40gb", "11.6"))
    )
    assert (today, old) == (0, 297 * MIB)


def test_buffers_between_ranks_come_on_top():
    alone, pair = (outside_bytes(device("a100-80gb"), ranks) for ranks in (1, 2))
    assert pair.expected - alone.expected == 544 * MIB
    assert pair.conservative > alone.conservative


@pytest.mark.parametrize(("name", "uses"), [("aten.convolution.default", True), ("aten.mm.default", False)])
def test_only_convolutions_load_cudnn(name, uses):
    assert uses_cudnn(Trace(calls=[Call(name, (), (), (), (), 0, 0, 0)])) is uses


def test_a_training_step_has_two_workspaces_of_cublas():
    assert workspace_bytes(device("t4")) == [8519680] * 2
    assert workspace_bytes(device("h100-80gb")) == [32 * MIB] * 2
