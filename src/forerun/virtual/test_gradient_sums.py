"""Sums of gradients that autograd makes: in place where a GPU makes them so."""

import pytest
import torch

from forerun.hardware.catalogue import device
from forerun.virtual.session import VirtualSession


def sums(*, is_kept=False, is_expanded=False, own=None):
    """Names of the additions of a backward pass in which a value is used twice."""
    kept = []
    with VirtualSession(device("t4")) as session:
        x = torch.ones(4, 8, requires_grad=True, device=session.torch_device)
        weight = torch.ones(8, 8, requires_grad=True, device=session.torch_device)
        y = x * 1
        if is_kept:
            y.register_hook(kept.append)
        z = y + torch.relu(y @ weight)
        if is_kept:
            z.register_hook(kept.append)
        if not is_expanded:  # the gradient of a sum is one number, expanded
            z = z * 2
        if own is not None:
            z = own.apply(z)
        before = len(session.recorder.trace.ops)
        z.sum().backward()
        trace = session.recorder.trace
        names = [trace.calls[op.call].name for op in trace.ops[before:]]
    return [name for name in names if name.startswith("aten.add")]


def test_the_older_gradient_takes_the_newer():
    assert sums() == ["aten.add_.Tensor"]


@pytest.mark.parametrize("why", ["is_kept", "is_expanded"])
def test_a_gradient_that_others_hold_or_that_is_expanded_is_left(why):
    assert sums(**{why: True}) == ["aten.add.Tensor"]


def test_a_gradient_that_another_sum_waits_for_is_left():
    """That of `y + u` goes to both; `v` comes back to `y` before anybody looks at that of `u`."""
    with VirtualSession(device("t4")) as session:
        x = torch.ones(4, 8, requires_grad=True, device=session.torch_device)
        weight = torch.ones(8, 8, requires_grad=True, device=session.torch_device)
        y = x * 1
        u, v = torch.relu(x @ weight), torch.relu(y @ weight)
        before = len(session.recorder.trace.ops)
        (((y + u) + v) * 2).sum().backward()
        trace = session.recorder.trace
        names = [trace.calls[op.call].name for op in trace.ops[before + 3 :]]
    assert [name for name in names if name.startswith("aten.add")] == ["aten.add.Tensor", *["aten.add_.Tensor"] * 2]


def test_what_a_program_adds_itself_is_left():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            other = gradient * 2
            return other + gradient

    assert sums(own=Own) == ["aten.add.Tensor", "aten.add_.Tensor"]
