"""L-BFGS goes on as it would where its losses fall: whether it has converged depends on values that nobody can know.

One call of its `step` may be the whole training (`max_iter=50000`): each of its iterations is a step then, and its
history is as long as it becomes.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import contiguous_format, empty_like
from torch.optim import LBFGS
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from forerun.virtual.cuda.cuda_graphs import AFTER_UPDATE
from forerun.virtual.put_back import replaced

TOLERANCES = {"tolerance_grad": -float("inf"), "tolerance_change": -float("inf")}
"""None of which any number meets."""
MOST_ITERATIONS = 40
"""Of one call that is one step; of more each iteration is one."""


def iterations_of(group: dict[str, Any]) -> int:
    """Iterations of one call of `step`; 1 where they are few, and it is a step itself."""
    iterations = min(group["max_iter"], group["max_eval"])
    return iterations if iterations > MOST_ITERATIONS else 1


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

    def add(optimizer: LBFGS, *update: Any) -> None:
        original(optimizer, *update)
        frame = sys._getframe(1)
        is_iteration = frame.f_code.co_name == "step"  # a line search looks at other places, too
        if is_iteration and iterations_of(optimizer.param_groups[0]) > 1:
            _fill_history(frame.f_locals)
            for tell in AFTER_UPDATE:
                tell()

    original = LBFGS._add_grad
    hooks = [register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)]
    try:
        with (
            replaced(importlib.import_module("torch.optim.lbfgs"), "_strong_wolfe", take_first),
            replaced(LBFGS, "_add_grad", add),
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _fill_history(names: Any) -> None:
    """Make the history of L-BFGS as long as it becomes, from the variables of its `step` (torch/optim/lbfgs.py, 2.13).

    The lists are its own.
    """
    most = min(names["history_size"], names["max_iter"])
    while len(names["old_dirs"]) < most:
        for history in (names["old_dirs"], names["old_stps"]):
            history.append(empty_like(names["flat_grad"]))
        names["ro"].append(empty_like(names["flat_grad"][0]))
