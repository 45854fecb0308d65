"""A model that goes to `meta` keeps its shapes alone, as the skeleton of an ensemble does."""

import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import forerun


def test_a_skeleton_on_meta_serves_many_models():
    with forerun.virtual_cuda("t4"):
        models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda() for _ in range(3)]
        skeleton = copy.deepcopy(models[0]).to("meta")
        assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}
        small = nn.Linear(2, 2).to("meta")
        assert (small.weight.device.type, isinstance(small.weight, nn.Parameter)) == ("meta", True)
        weights, buffers = stack_module_state(models)
        rows = torch.randn(16, 4, device="cuda")
        out = vmap(lambda w, b, x: functional_call(skeleton, (w, b), (x,)), (0, 0, None))(weights, buffers, rows)
        assert out.shape == (3, 16, 1)
        out.sum().backward()
        assert weights["0.weight"].grad.shape == (3, 8, 4)
