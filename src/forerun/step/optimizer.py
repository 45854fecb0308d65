"""The optimizer of a step, from settings: decay exempts vectors, `auto` is fused where the rule has such kernels.

PyTorch has AdamW, SGD, Adafactor and Muon (for matrices; the rest is updated by AdamW, as its authors do); bitsandbytes
has the 8-bit and paged AdamW and Lion. A step that is only traced gets stand-ins for bitsandbytes'.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from forerun.errors import NotSupported
from forerun.settings.schema import OptimizerSettings
from forerun.step.eight_bit import TracedOptimizer
from forerun.step.optimizer_in_backward import Make, OptimizerInBackward
from forerun.step.quantization import import_bitsandbytes

Wrap = Callable[[list[dict[str, Any]], Make], torch.optim.Optimizer]
"""Makes an optimizer of parameter groups and of what makes a rule over groups."""
ISSUE = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
HAS_FUSED = {"adamw", "sgd"}
HAS_FUSED_OF_SHARDS = {"adamw"}
"""Rules whose fused operator has a sharding strategy (torch/distributed/tensor/_ops/_pointwise_ops.py, 2.13)."""
ONE_KERNEL_EACH: dict[str, dict[str, Any]] = {
    "adamw-8bit": {"moments": 2, "bits": 8},
    "paged-adamw": {"moments": 2, "bits": 32, "paged": True},
    "paged-adamw-8bit": {"moments": 2, "bits": 8, "paged": True},
    "lion": {"moments": 1, "bits": 32},
}
"""Rules of bitsandbytes, which launches one kernel for each parameter and offers no other way."""
BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit", "paged-adamw": "PagedAdamW32bit", "paged-adamw-8bit": "PagedAdamW8bit", "lion": "Lion",
}  # fmt: skip


def parameter_groups(
    model: nn.Module, settings: OptimizerSettings, scale: Callable[[str], float]
) -> list[dict[str, Any]]:
    """Groups by decay (matrices) or none (vectors and scalars) and by learning-rate scale, in order of first use.

    Experts that are dealt over ranks are groups of their own: no kernel takes tensors of two meshes.

    Frozen parameters are included only when they may thaw later, that is never for adapters: the caller freezes for
    good before this and for a schedule after it.
    """
    groups: dict[tuple[float, float, Any], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((decay, scale(name), getattr(parameter, "device_mesh", None)), []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "lr": settings.learning_rate * factor, "scale": factor}
        for (decay, factor, _), members in groups.items()
    ]


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices inside the model, AdamW for embeddings, heads and vectors (Jordan et al. 2024).

    One state and one list of groups, so that schedules and checkpoints see a single optimizer.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, issue: dict[str, Any]):
        super().__init__(groups, {"lr": learning_rate})
        inner = [g for g in self.param_groups if g["muon"]], [g for g in self.param_groups if not g["muon"]]
        rules = torch.optim.Muon, torch.optim.AdamW
        self.inner: list[torch.optim.Optimizer] = []
        for rule, members in zip(rules, inner, strict=True):
            if members:
                keywords = issue if rule is torch.optim.AdamW else {}
                self.inner.append(rule(members, lr=learning_rate, **keywords))
                self.inner[-1].state = self.state  # before its first step, so that all write into one state
        self.param_groups = [group for optimizer in self.inner for group in optimizer.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the matrices by Muon and the rest by AdamW."""
        for optimizer in self.inner:
            optimizer.step()


def muon_groups(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split each group into matrices that Muon updates and the rest."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables |= {id(head.weight)} if head is not None else set()
    split = []
    for group in groups:
        for muon in (True, False):
            members = [p for p in group["params"] if (p.ndim == 2 and id(p) not in tables) is muon]
            if members:
                split.append({**group, "params": members, "muon": muon})
    return split


def build_optimizer(
    model: nn.Module,
    settings: OptimizerSettings,
    scale: Callable[[str], float] = lambda name: 1.0,
    wrap: Wrap | None = None,
) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters of `model`; `wrap` decides over which tensors its rule works.

    Raises:
        NotSupported: the rule has no such implementation.
        MissingExtra: the rule is bitsandbytes', which is not installed, and the step is to run.
    """
    groups = parameter_groups(model, settings, scale)
    implementation = settings.implementation
    if settings.name in ONE_KERNEL_EACH and implementation != "auto":
        raise NotSupported(
            f"optimizer.implementation: {settings.name} launches one kernel for each parameter and has no other way; "
            f"found {implementation!r}. Set it to auto."
        )
    if implementation == "fused" and settings.name not in HAS_FUSED:
        raise NotSupported(
            f"optimizer.implementation: {settings.name} has no fused kernel in PyTorch; "
            f"found 'fused'. Use foreach or for-loop."
        )
    is_split = any(hasattr(p, "full_tensor") for group in groups for p in group["params"])
    has_fused = settings.name in (HAS_FUSED_OF_SHARDS if is_split else HAS_FUSED)
    if implementation == "fused" and not has_fused:
        raise NotSupported(
            f"optimizer.implementation: PyTorch's fused {settings.name} takes no tensors that are split over ranks; "
            f"found 'fused'. Use foreach or auto."
        )
    if implementation == "auto":
        implementation = "fused" if has_fused else "foreach"
    make = functools.partial(_make, model, settings, ISSUE[implementation])
    wrap = OptimizerInBackward if settings.in_backward else wrap
    return make(groups) if wrap is None else wrap(groups, make)


def _make(
    model: nn.Module, settings: OptimizerSettings, issue: dict[str, Any], groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    rate = settings.learning_rate
    match settings.name:
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, **issue)
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=0.9, **issue)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=rate, **issue)
        case "muon":
            return MuonWithAdamW(muon_groups(model, groups), rate, issue)
        case name:
            if any(is_fake(p) for p in model.parameters()):
                return TracedOptimizer(groups, **ONE_KERNEL_EACH[name])
            return getattr(import_bitsandbytes("optimizer.name").optim, BITSANDBYTES[name])(groups, lr=rate)
