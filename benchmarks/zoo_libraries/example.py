"""One training example of a model: how to build it, what to give it, what to minimise, on any device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Example:
    """A model and its batch; both are made anew on each call, on the host."""

    build: Callable[[], nn.Module]
    batch: Callable[[nn.Module], dict[str, Any]]
    call: Callable[[nn.Module, dict[str, Any]], Any] | None = None
    """How the batch is given to the model; None: as keyword arguments."""
    note: str = ""


@dataclass(frozen=True)
class Step:
    """What one training step left behind."""

    loss_shape: tuple[int, ...]
    parameters: int
    with_gradient: int
    """Parameter tensors that got a gradient."""


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from _tensors(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from _tensors(each)
    elif hasattr(tree, "__dict__") and not isinstance(tree, nn.Module):
        yield from _tensors(vars(tree))


def loss_of(output: Any) -> torch.Tensor:
    """The model's own loss, or the mean of all differentiable results."""
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
        return loss.reshape(())
    results = [each for each in _tensors(output) if each.requires_grad]
    results = [each.real if each.is_complex() else each for each in results]
    if not results:
        raise ValueError("no result of the model can be differentiated")
    return torch.stack([each.float().mean() for each in results]).sum()


def train_step(example: Example, device: str) -> Step:
    """One step of AdamW on `device`, as a script would write it."""
    torch.manual_seed(0)
    model = example.build()
    batch = example.batch(model)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    batch = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), batch)
    output = model(**batch) if example.call is None else example.call(model, batch)
    loss = loss_of(output)
    loss.backward()
    gradients = [p for p in model.parameters() if p.grad is not None]
    if not gradients:
        raise ValueError("no parameter got a gradient")
    optimizer.step()
    optimizer.zero_grad()
    return Step(tuple(loss.shape), sum(p.numel() for p in model.parameters()), len(gradients))
