"""What is trained grows in a branch: by an optimizer that is made anew, or by other parameters of the same one."""

import torch

from forerun.virtual.cuda import grown_models
from forerun.virtual.cuda.grown_models import GrownModels


def parameters(count):
    return [torch.nn.Parameter(torch.zeros(count))]


def test_what_an_optimizer_updates_and_what_takes_its_place(monkeypatch):
    optimizers = [torch.optim.SGD(parameters(10), 0.1)]
    monkeypatch.setattr(grown_models, "live_objects", lambda kind: optimizers)
    grown = GrownModels()

    grown.begin("a.py:1")
    optimizers[0].param_groups[0]["params"] = parameters(15)
    grown.end("a.py:1")
    assert grown.by_line == {"a.py:1": (10, 15)}

    grown.begin("a.py:2")
    optimizers.append(torch.optim.Adam(parameters(5)))  # the old one is not collected yet
    grown.end("a.py:2")
    assert grown.by_line["a.py:2"] == (15, 5)


def test_an_optimizer_of_as_many_is_no_change(monkeypatch):
    optimizers = [torch.optim.SGD(parameters(1000), 0.1)]
    monkeypatch.setattr(grown_models, "live_objects", lambda kind: optimizers)
    grown = GrownModels()
    grown.begin("a.py:1")
    optimizers.append(torch.optim.SGD(parameters(1001), 0.1))
    grown.end("a.py:1")
    grown.begin("a.py:1")
    optimizers.append(torch.optim.SGD(parameters(9), 0.1))  # each branch is looked at once
    grown.end("a.py:1")
    assert grown.by_line == {}
