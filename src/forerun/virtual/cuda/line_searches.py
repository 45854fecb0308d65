"""L-BFGS goes on as it would where its losses fall: whether it has converged depends on values that nobody can know."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import contiguous_format
from torch.optim import LBFGS
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.virtual.put_back import replaced

TOLERANCES = {"tolerance_grad": -float("inf"), "tolerance_change": -float("inf")}
"""None of which any number meets."""


@contextlib.contextmanager
def searching_on(note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, `torch.optim.LBFGS` makes all its iterations, and a line search takes its first step.

    The unit step is the one that is nearly always taken (Nocedal and Wright, Numerical Optimization, 2006, section
    7.2); `max_eval` ends a step after 1.25 evaluations for each iteration in any case (torch/optim/lbfgs.py, 2.13).
    """
    before: dict[int, dict[str, float]] = {}

    def begin(optimizer: Any, *_: Any) -> None:
        if isinstance(optimizer, LBFGS):
            (group,) = optimizer.param_groups
            before[id(optimizer)] = {name: group[name] for name in TOLERANCES}
            group.update(TOLERANCES)

    def end(optimizer: Any, *_: Any) -> None:
        if id(optimizer) in before:
            optimizer.param_groups[0].update(before.pop(id(optimizer)))

    def take_first(evaluate: Any, x: Any, t: Any, d: Any, *_: Any, **__: Any) -> tuple[Any, Any, Any, int]:
        note("the line search of L-BFGS", "its first step is taken")
        loss, gradient = evaluate(x, t, d)
        return loss, gradient.clone(memory_format=contiguous_format), t, 1

    hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    try:
        with replaced(importlib.import_module("torch.optim.lbfgs"), "_strong_wolfe", take_first):
            yield
    finally:
        for hook in hooks:
            hook.remove()
