"""The optimizer of a step, from settings: decay exempts vectors, `auto` is fused where the rule has such kernels."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from forerun.errors import NotSupported
from forerun.settings.schema import OptimizerSettings

ISSUE = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
HAS_FUSED = {"adamw", "sgd"}


def parameter_groups(
    model: nn.Module, settings: OptimizerSettings, scale: Callable[[str], float]
) -> list[dict[str, Any]]:
    """Groups by decay (matrices) or none (vectors and scalars) and by learning-rate scale, in order of first use.

    Frozen parameters are included only when they may thaw later, that is never for adapters: the caller freezes for
    good before this and for a schedule after it.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((decay, scale(name)), []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "lr": settings.learning_rate * factor, "scale": factor}
        for (decay, factor), members in groups.items()
    ]


def build_optimizer(
    model: nn.Module, settings: OptimizerSettings, scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters of `model`.

    Raises:
        NotSupported: the rule or its implementation is not offered by this version.
    """
    groups = parameter_groups(model, settings, scale)
    implementation = settings.implementation
    if implementation == "auto":
        implementation = "fused" if settings.name in HAS_FUSED else "foreach"
    if implementation == "fused" and settings.name not in HAS_FUSED:
        raise NotSupported(
            f"optimizer.implementation: {settings.name} has no fused kernel in PyTorch; "
            f"found 'fused'. Use foreach or for-loop."
        )
    issue: dict[str, Any] = ISSUE[implementation]
    match settings.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=settings.learning_rate, **issue)
        case "sgd":
            return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9, **issue)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=settings.learning_rate, **issue)
        case _:
            raise NotSupported(
                f"optimizer.name: {settings.name} is in the contract but not offered by this version. "
                f"Use adamw, sgd or adafactor."
            )
