"""Errors of hooks in a backward pass reach the program; without the guard they end the process."""

import pytest
import torch

import forerun


def failing(*_):
    raise KeyError("mine")


def of_tensor(tensor):
    result = tensor * 3
    result.register_hook(failing)
    return result


def of_leaf(tensor):
    tensor.register_post_accumulate_grad_hook(failing)
    return tensor * 3


def of_node(tensor):
    result = tensor * 3
    result.grad_fn.register_prehook(failing)
    return result


def of_saved(tensor):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, failing):
        return tensor * tensor


@pytest.mark.parametrize("hook", [of_tensor, of_leaf, of_node, of_saved])
def test_an_error_of_a_hook_reaches_the_program(hook):
    with forerun.virtual_cuda("t4"):
        tensor = torch.ones(4, device="cuda", requires_grad=True)
        with pytest.raises(KeyError, match="mine") as caught:
            hook(tensor).sum().backward()
        assert caught.traceback[-1].name == "failing"
        torch.ones(4, device="cuda", requires_grad=True).sum().backward()
