"""Each parameter updated as soon as its gradient is there, which is dropped at once: the whole set never exists.

One optimizer for each parameter, called by a hook, as in PyTorch's tutorial ("How to save memory by fusing the
optimizer step into the backward pass") and torchtune's `optimizer_in_bwd`. All write into one state, so checkpoints and
schedules see a single optimizer.

Not covered: what needs all gradients before the first update (accumulation, clipping, loss scaling, several ranks).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forerun.errors import NotSupported
from forerun.settings.schema import Settings

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def require_alone(settings: Settings) -> None:
    """Refuse what needs every gradient before the first update.

    Raises:
        NotSupported: naming the setting.
    """
    if not settings.optimizer.in_backward:
        return
    steps, limit = settings.batch.gradient_accumulation_steps, settings.optimizer.max_gradient_norm
    obstacles = [
        (steps > 1, f"batch.gradient_accumulation_steps={steps}"),
        (limit is not None, f"optimizer.max_gradient_norm={limit}"),
        (settings.precision == "fp16-mixed", "precision='fp16-mixed', whose loss scaling looks at all gradients"),
        (settings.parallel.kind != "none", f"parallel.kind={settings.parallel.kind!r}"),
        (settings.optimizer.name == "muon", "optimizer.name='muon'"),
        (settings.schedule.frozen_encoder_epochs > 0, "schedule.frozen_encoder_epochs above 0"),
    ]
    for applies, text in obstacles:
        if applies:
            raise NotSupported(
                f"optimizer.in_backward: updates each parameter as its gradient comes, so nothing may need them all; "
                f"found {text}. Set optimizer.in_backward to false, or change that."
            )


class OptimizerInBackward(torch.optim.Optimizer):
    """An optimizer for each parameter of `groups`, made by `make`, that steps in the backward pass."""

    def __init__(self, groups: list[dict[str, Any]], make: Make):
        super().__init__(groups, {})
        self.before_update: Callable[[Tensor], None] = lambda parameter: None
        """Told each parameter that has its gradient and is about to be updated."""
        self._inner: dict[int, tuple[dict[str, Any], torch.optim.Optimizer]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                inner = make([{**group, "params": [parameter]}])
                inner.state = self.state  # before its first step, so that all write into one state
                self._inner[id(parameter)] = group, inner
                parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: Tensor) -> None:
        self.before_update(parameter)
        group, inner = self._inner[id(parameter)]
        inner.param_groups[0].update({name: value for name, value in group.items() if name != "params"})
        inner.step()
        parameter.grad = None

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient: none after a backward pass."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)
