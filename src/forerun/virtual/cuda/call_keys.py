"""What two calls of a module must share to do the same work."""

from collections.abc import Hashable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.cuda.shadow import shadow_of

PLAIN = (int, float, bool, str, type(None), torch.dtype)
HARMLESS_HOOKS = ("transformers.", "peft.")
"""Hooks of these packages, such as the one that makes embeddings require gradients, leave nothing behind."""


def evaluation_key(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """What two calls must share to be the same; None for one that has to run."""
    if module.training or torch.is_grad_enabled():
        return None
    leaves, structure = pytree.tree_flatten((args, kwargs))
    if not all(isinstance(leaf, torch.Tensor) or type(leaf) in PLAIN for leaf in leaves):
        return None
    if not any(is_virtual(leaf) for leaf in leaves):
        return None
    if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return None
    specs = tuple(_spec(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return id(module), str(structure), specs, autocast


def training_key(module: nn.Module, leaves: list[Any], structure: Any) -> Hashable | None:
    """What two calls must share to be the same micro-batch; None for one that has to run."""
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return None
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not any(map(is_virtual, tensors)) or any(tensor.requires_grad for tensor in tensors):
        return None
    if not all(isinstance(leaf, torch.Tensor) or type(leaf) in PLAIN for leaf in leaves):
        return None
    if isinstance(module, DistributedDataParallel) and module.require_backward_grad_sync:
        return None
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not all(_is_simple(parameter) for parameter in trained):
        return None
    if has_own_hooks(module):
        return None
    specs = tuple((*_spec(leaf), is_full(leaf)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    training = hash(tuple(part.training for part in module.modules()))
    return id(module), str(structure), specs, autocast, training, hash(tuple(map(id, trained))), gradients_of(module)


def gradients_of(module: nn.Module) -> int:
    """Which parameters have a gradient, as a hash."""
    return hash(tuple(p.is_leaf and p.grad is not None for p in module.parameters()))


def has_own_hooks(module: nn.Module) -> bool:
    """Whether a module or a part of it has hooks that may leave something behind."""
    return not all(_is_harmless(hook) for part in module.modules() for hook in _hooks(part))


def is_full(tensor: torch.Tensor) -> bool:
    """Whether it is a mask without gaps, which is often left out."""
    values = _decisive(tensor)
    return values is not None and tensor.dim() > 1 and bool(values.all())


def _is_simple(parameter: nn.Parameter) -> bool:
    """Whether nothing watches its gradient."""
    is_whole = is_virtual(parameter) and not hasattr(parameter, "_local_tensor")
    return is_whole and not parameter._backward_hooks and not _after_hooks(parameter)


def _after_hooks(parameter: torch.Tensor) -> Any:
    return getattr(parameter, "_post_accumulate_grad_hooks", None)


def _hooks(part: nn.Module) -> Iterable[Any]:
    yield from part._forward_hooks.values()
    yield from part._forward_pre_hooks.values()
    yield from part._backward_hooks.values()
    yield from part._backward_pre_hooks.values()


def _is_harmless(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(HARMLESS_HOOKS)


def _spec(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, is_virtual(tensor)


def _decisive(tensor: torch.Tensor) -> torch.Tensor | None:
    """Values that may decide how much is computed: those of masks and lengths."""
    shadow = shadow_of(tensor) if is_virtual(tensor) else None
    if shadow is None or tensor.is_floating_point():
        return None
    value = shadow.value
    is_mask = tensor.dtype == torch.bool or (tensor.dim() > 1 and bool((value <= 1).all() & (value >= 0).all()))
    return value if is_mask or (tensor.dim() == 1 and tensor.dtype == torch.int32) else None


def mask_values(leaf: Any) -> bytes | None:
    """Values of an argument that may decide how much is computed: those of masks and lengths."""
    values = _decisive(leaf) if isinstance(leaf, torch.Tensor) else None
    return None if values is None else values.numpy().tobytes()
