"""Give a model fake storage on a device, keeping tied weights tied."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from forerun.step.parallel import local
from forerun.virtual.cuda.tensor_classes import parameter_like, replace_data
from forerun.virtual.lazy_layers import keep_for_later, sizing_lazy_layers
from forerun.virtual.live_objects import live_objects
from forerun.virtual.put_back import replaced

Module = TypeVar("Module", bound=nn.Module)
_SUCCESSOR = "_forerun_successor"
"""Attribute of a parameter that was replaced, where PyTorch would have moved its data in place."""


def place(model: Module, device: torch.device, shards_on: torch.device | None = None) -> Module:
    """Replace every meta parameter and buffer of `model` by an empty one on `device`; call it under a fake mode.

    `shards_on`: where this rank's parts of sharded parameters live, if elsewhere.
    """
    placed: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is None:
                    continue
                if id(old) not in placed:
                    placed[id(old)] = _empty_twin(old, device, shards_on or device)
                table[name] = placed[id(old)]  # type: ignore[assignment]
    _flatten_recurrent(model)
    return model


def _flatten_recurrent(model: nn.Module) -> None:
    """Recurrent layers put their weights into one buffer when they move (torch/nn/modules/rnn.py:_apply, 2.13)."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def _empty_twin(old: Tensor, device: torch.device, shards_on: torch.device) -> Tensor:
    if local(old) is not old:  # sharded: this rank's part only
        new = torch.empty_like(old, device=shards_on)
    else:
        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=device)
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


@contextlib.contextmanager
def moving_fake_modules(*, keeps_objects: bool = False) -> Iterator[None]:
    """Let `module.to(...)` replace fake parameters, where PyTorch would change them in place and cannot.

    Optimizers that were made before get the new parameters, as they would see the moved data. With `keeps_objects`
    parameters stay the same objects, as they do in PyTorch; not where somebody goes on with them afterwards.
    """
    apply_in_place: Callable[..., nn.Module] = nn.Module._apply
    make_optimizer: Callable[..., None] = torch.optim.Optimizer.__init__
    optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
    has_earlier = False

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        make_optimizer(self, *args, **kwargs)
        optimizers.add(self)

    moved: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one: its id must stay taken
    depth = [0]

    def all_optimizers() -> list[torch.optim.Optimizer]:
        nonlocal has_earlier
        if not has_earlier:  # only now: to look for them takes time
            optimizers.update(live_objects(torch.optim.Optimizer))
            has_earlier = True
        return list(optimizers)

    def apply(self: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        depth[0] += 1
        try:
            if recurse:
                for child in self.children():  # recurrent layers list their weights anew in an `_apply` of their own
                    child._apply(function)
            if any(p is not None and local(p) is not p for p in self._parameters.values()):  # sharded
                return apply_in_place(self, function, recurse=False)
            for table in (self._parameters, self._buffers):
                for name, old in table.items():
                    if old is not None and id(old) not in moved:
                        moved[id(old)] = old, _moved(old, function, keeps_objects)
                    table[name] = None if old is None else moved[id(old)][1]  # type: ignore[assignment]
        finally:
            depth[0] -= 1
            if depth[0] == 0:
                if any(old is not new for old, new in moved.values()):
                    for optimizer in all_optimizers():
                        _replace_parameters(optimizer, moved)
                moved.clear()
        return self

    with (
        replaced(nn.Module, "_apply", apply),
        replaced(torch.optim.Optimizer, "__init__", init),
        sizing_lazy_layers(),
    ):
        yield


def _replace_parameters(optimizer: torch.optim.Optimizer, moved: dict[int, tuple[Tensor, Tensor]]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [moved[id(each)][1] if id(each) in moved else each for each in group["params"]]
    for old, new in moved.values():
        if old is not new and old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _moved(old: Tensor, function: Callable[[Tensor], Tensor], keeps_objects: bool) -> Tensor:
    """What `function` makes of a parameter or buffer; of one that was replaced before, of its successor."""
    old = getattr(old, _SUCCESSOR, old)
    if keep_for_later(old, function):
        return old
    with torch.no_grad():
        new = function(old)
        gradient = None if old.grad is None else function(old.grad)
    if new is old or not isinstance(old, nn.Parameter):
        return new
    are_real = not isinstance(old, FakeTensor) and not isinstance(new, FakeTensor)
    if are_real and torch._has_compatible_shallow_copy_type(old, new):  # type: ignore[attr-defined]  # not to `meta`
        old.data = new  # torch/nn/modules/module.py (2.13), _apply: the parameter stays the same object
        if gradient is not None:
            old.grad = gradient
        return old
    if keeps_objects:
        with contextlib.suppress(RuntimeError):  # something else holds its implementation
            replace_data(old, new)
            old.grad = gradient
            return old
    if not isinstance(new, nn.Parameter):
        new = parameter_like(old, new)
    new.grad = gradient
    for name, value in vars(old).items():  # notes of libraries, such as "no weight decay"
        if name not in vars(new) and not name.startswith("_forerun"):
            setattr(new, name, value)
    setattr(old, _SUCCESSOR, new)
    return new
