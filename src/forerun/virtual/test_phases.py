"""Phases of programs that do not announce them."""

import functools
from collections import Counter

import pytest
import torch
from torch import nn

import forerun
from forerun.memory.replay import category
from forerun.trace import Category, Phase


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


@pytest.mark.medium
@pytest.mark.parametrize("wrap", ["by name", lambda step: step, functools.partial, Closure])
def test_what_a_closure_computes_is_no_update(wrap):
    assert trained(wrap) == trained(None)


def test_what_outlives_a_backward_pass_is_an_activation_until_the_next_forward_pass_frees_it():
    """A graph that several losses go back through is freed when its variables get others, in the next step."""
    rows, width = 64, 256
    with forerun.virtual_cuda("t4") as gpu:
        layers = nn.Sequential(nn.Linear(width, width), nn.Sigmoid(), nn.Linear(width, width)).cuda()
        for _ in range(3):
            result = layers(torch.ones(rows, width, device="cuda"))
            for loss in (result.sum(), result.square().sum()):
                loss.backward(retain_graph=True)
    of_result = [each for each in gpu.trace.storages if each.bytes == 4 * rows * width and each.owner is None]
    categories = Counter(category(each) for each in of_result if each.phase is Phase.FORWARD)
    assert categories[Category.ACTIVATION] >= 3 * 3  # inputs, the sigmoid's result and the last layer's
    assert categories[Category.TEMPORARY] <= 3 * 2


def test_data_and_averages_that_stay_on_the_card_are_no_activations():
    rows, width = 4096, 256
    with forerun.virtual_cuda("t4") as gpu:
        examples = torch.zeros(8 * rows, width, device="cuda")
        model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()
        averages = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            model(examples[step * rows : (step + 1) * rows]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for name, value in model.state_dict().items():
                averages[name].lerp_(value, 0.01)
    bytes_of = Counter()
    for storage in gpu.trace.storages:
        bytes_of[category(storage)] += storage.bytes
    own = sum(each.numel() * each.element_size() for each in (examples, *averages.values()))
    assert bytes_of[Category.OTHER] == pytest.approx(own, rel=0.01)
    assert bytes_of[Category.ACTIVATION] < 3 * 8 * 4 * rows * width
