"""Phases of programs that do not announce them."""

import functools
from collections import Counter

import pytest
import torch
from torch import nn

import forerun


class Closure:
    """As Lightning's: an object that is called."""

    def __init__(self, step):
        self.step = step

    def __call__(self):
        return self.step()


def trained(wrap):
    """Operators of each phase, and bytes by the phases in which they were allocated and freed, of two steps."""
    with forerun.virtual_cuda("t4") as gpu:
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def compute():
            optimizer.zero_grad()
            loss = model(torch.ones(64, 256, device="cuda")).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            if wrap is None:
                compute()
                optimizer.step()
            elif wrap == "by name":
                optimizer.step(closure=compute)
            else:
                optimizer.step(wrap(compute))
    trace = gpu.trace
    bytes_of = Counter()
    for storage in trace.storages:
        bytes_of[storage.phase, storage.freed_in, storage.owner] += storage.bytes
    return Counter(op.phase for op in trace.ops), bytes_of


@pytest.mark.parametrize("wrap", ["by name", lambda step: step, functools.partial, Closure])
def test_what_a_closure_computes_is_no_update(wrap):
    assert trained(wrap) == trained(None)
