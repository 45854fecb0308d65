"""The stand-ins of bitsandbytes' optimizers keep what the library keeps."""

import pytest
import torch
from torch import nn

from forerun.step.eight_bit import TracedOptimizer, paged_bytes
from forerun.step.optimizer import BITSANDBYTES, ONE_KERNEL_EACH
from forerun.virtual.session import VirtualSession


def state_bytes(optimizer):
    """Each tensor once: the code is shared."""
    tensors = {id(v): v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def model():
    return nn.Sequential(nn.Linear(256, 128), nn.Linear(128, 300))


@pytest.mark.parametrize("name", sorted(BITSANDBYTES))
def test_state_is_that_of_the_library(name):
    """Matrices of 32,768 and 38,400 elements are 8-bit, biases below 4,096 are not."""
    bnb = pytest.importorskip("bitsandbytes")
    real = model()
    library = getattr(bnb.optim, BITSANDBYTES[name])(real.parameters(), lr=0.01)
    for parameter in real.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.warns(UserWarning, match="Paged") if "paged" in name else _nothing():
        library.step()
    from forerun.hardware.catalogue import device

    with VirtualSession(device("a100-40gb")) as session:
        with torch.device(session.torch_device):
            traced = model()
        stand_in = TracedOptimizer(traced.parameters(), **ONE_KERNEL_EACH[name])
        for parameter in traced.parameters():
            parameter.grad = torch.zeros_like(parameter)
        stand_in.step()
        assert state_bytes(stand_in) == state_bytes(library)
    names = [session.recorder.trace.calls[op.call].name for op in session.recorder.trace.ops]
    assert sum("update_" in n for n in names) == 4


def test_paged_state_is_outside_the_allocator_from_100_000_elements_on():
    from forerun.hardware.catalogue import device

    with VirtualSession(device("a100-40gb")) as session:
        with torch.device(session.torch_device):
            layer = nn.Linear(400, 300, bias=True)
        optimizer = TracedOptimizer(layer.parameters(), moments=2, bits=8, paged=True)
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        assert paged_bytes(optimizer) == 2 * 400 * 300


def _nothing():
    import contextlib

    return contextlib.nullcontext()
