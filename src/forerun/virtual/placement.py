"""Give a model fake storage on a device, keeping tied weights tied."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from forerun.step.parallel import local

Module = TypeVar("Module", bound=nn.Module)


def place(model: Module, device: torch.device) -> Module:
    """Replace every meta parameter and buffer of `model` by an empty one on `device`; call it under a fake mode."""
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if id(old) not in placed:
                    placed[id(old)] = _empty_twin(old, device)
                table[name] = placed[id(old)]  # type: ignore[assignment]
    return model


def _empty_twin(old: Tensor, device: torch.device) -> Tensor:
    if local(old) is not old:  # sharded: this rank's part only
        new = torch.empty_like(old, device=device)
    else:
        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


@contextlib.contextmanager
def moving_fake_modules() -> Iterator[None]:
    """Let `module.to(...)` replace fake parameters, where PyTorch would change them in place and cannot.

    Optimizers that were made before get the new parameters, as they would see the moved data.
    """
    apply_in_place: Callable[..., nn.Module] = nn.Module._apply
    make_optimizer: Callable[..., None] = torch.optim.Optimizer.__init__
    optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        make_optimizer(self, *args, **kwargs)
        optimizers.add(self)

    def apply(self: nn.Module, function: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        if not any(isinstance(p, FakeTensor) for p in self.parameters()):
            return apply_in_place(self, function, *args, **kwargs)
        moved: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one: its id must stay taken
        for module in self.modules():
            for table in (module._parameters, module._buffers):
                for name, old in table.items():
                    if old is not None and id(old) not in moved:
                        moved[id(old)] = old, _moved(old, function)
                    table[name] = None if old is None else moved[id(old)][1]  # type: ignore[assignment]
        for optimizer in list(optimizers):
            _replace_parameters(optimizer, moved)
        return self

    nn.Module._apply = apply  # type: ignore[method-assign]
    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = apply_in_place  # type: ignore[method-assign]
        torch.optim.Optimizer.__init__ = make_optimizer  # type: ignore[method-assign]


def _replace_parameters(optimizer: torch.optim.Optimizer, moved: dict[int, tuple[Tensor, Tensor]]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [moved[id(each)][1] if id(each) in moved else each for each in group["params"]]
    for old, new in moved.values():
        if old is not new and old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _moved(old: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        new = function(old)
    if new is old or not isinstance(old, nn.Parameter):
        return new
    return nn.Parameter(new, old.requires_grad)
