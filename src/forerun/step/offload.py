"""Optimizer state in host memory, updated there: torchao's `CPUOffloadOptimizer`, as the virtual GPU sees it.

Each gradient is copied to the host as soon as it is there, beside the backward pass; the host updates one parameter
after the other and copies it back. Weights and gradients stay on the device (`offload_gradients=False`), parameters
below 4,096 elements are updated there. Source: torchao 0.18, `optim/cpu_offload.py`.

Not covered: what the host's memory holds, which is not the device's; a step that runs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from forerun.errors import NotSupported
from forerun.settings.schema import Settings
from forerun.step.optimizer_in_backward import Make
from forerun.step.parallel import local
from forerun.step.quantization import library
from forerun.trace import ADAM_PASSES

MINIMAL_ELEMENTS = 4096

library.define("copy_to_host(Tensor source) -> ()")
library.define("copy_from_host_(Tensor(a!) target) -> ()")
library.define("update_on_host_(Tensor(a!) parameter, int bytes_per_element) -> ()")


@torch.library.register_fake("forerun::copy_to_host", lib=library)
def _(source: Tensor) -> None:
    return None


@torch.library.register_fake("forerun::copy_from_host_", lib=library)
def _(target: Tensor) -> None:
    return None


@torch.library.register_fake("forerun::update_on_host_", lib=library)
def _(parameter: Tensor, bytes_per_element: int) -> None:
    return None


def record_update(parameters: Iterable[Tensor], device: str) -> None:
    """Let the host update the parts of `parameters` that live there, as Adam in their dtype; the step waits for it."""
    work = ADAM_PASSES * sum(local(each).numel() * each.element_size() for each in parameters)
    torch.ops.forerun.update_on_host_(torch.empty(1, dtype=torch.uint8, device=device), work)


def require_offload(settings: Settings) -> None:
    """Refuse what is not offloaded here.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    parallel = settings.parallel
    if parallel.offload == "none":
        return
    text = f"found offload={parallel.offload!r} with kind={parallel.kind!r} and zero={parallel.zero}"
    if parallel.offload == "parameters" and not parallel.splits_weights:
        raise NotSupported(
            f"parallel.offload: parameters in host memory come with FSDP and with DeepSpeed's ZeRO-3; {text}. Set "
            f"parallel.kind to fsdp, or to ddp with parallel.zero 3, or offload to optimizer."
        )
    if parallel.kind == "fsdp" and parallel.offload == "optimizer":
        raise NotSupported(
            f"parallel.offload: FSDP's CPUOffloadPolicy moves weights with their optimizer; {text}. Set it to "
            f"parameters, or parallel.kind to ddp and parallel.zero to 1, 2 or 3."
        )
    if parallel.kind == "fsdp" and (parallel.pipeline > 1 or settings.precision == "fp16-mixed"):
        raise NotSupported(
            f"parallel.offload: FSDP's offloading is not modelled in pipelines, nor under a loss scale; found "
            f"pipeline={parallel.pipeline} and precision={settings.precision!r}. Set precision to bf16-mixed, "
            f"parallel.pipeline to 1, or parallel.offload to none."
        )
    if parallel.kind not in ("none", "fsdp") and not parallel.deepspeed_stage:
        raise NotSupported(
            f"parallel.offload: of several devices DeepSpeed offloads; {text}. Set parallel.kind to ddp and "
            "parallel.zero to 1, 2 or 3."
        )
    if settings.optimizer.name not in ("adamw",) or settings.optimizer.in_backward:
        raise NotSupported(
            f"parallel.offload: the host's update is Adam's; found optimizer.name={settings.optimizer.name!r}. "
            f"Set it to adamw, in_backward to false."
        )


class OffloadedOptimizer(torch.optim.Optimizer):
    """State and update on the host for all large parameters of `groups`; `make` makes the optimizer of the small."""

    def __init__(self, groups: list[dict[str, Any]], make: Make):
        super().__init__(groups, {})
        small = [
            {**group, "params": [p for p in group["params"] if p.numel() < MINIMAL_ELEMENTS]} for group in groups
        ]  # fmt: skip
        small = [group for group in small if group["params"]]
        self._on_device = make(small) if small else None
        if self._on_device is not None:
            self._on_device.state = self.state
        self._large = [p for group in groups for p in group["params"] if p.numel() >= MINIMAL_ELEMENTS]
        for parameter in self._large:
            parameter.register_post_accumulate_grad_hook(lambda p: torch.ops.forerun.copy_to_host(p.grad))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the small parameters here and the large ones on the host."""
        if self._on_device is not None:
            self._on_device.step()
        for parameter in self._large:
            if parameter.grad is not None:
                torch.ops.forerun.update_on_host_(parameter, ADAM_PASSES * parameter.element_size())
