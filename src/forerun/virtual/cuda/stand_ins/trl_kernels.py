"""TRL's loss without logits (`trl/kernels`, 1.16): a tile of logits is folded into numbers for each token at once.

TRL runs Triton's kernels on a GPU. Where Triton is not installed it folds tiles with operators of PyTorch, which is not
what the card will do: 25 passes over a tile in float32 in place of one. So the folding functions of both kinds are one
launch here. Products between them are the program's own.
"""

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.stand_ins.registry import launch
from forerun.virtual.put_back import replaced

FOLDS = {
    "trl.kernels.chunked_logprob": ("forward", "backward"),
    "trl.kernels.chunked_divergence": ("stats", "jsd", "backward"),
}
"""Parts of the names of kernels (`_forward_kernel`) and of what stands for them without Triton (`_forward_tile`)."""
TILE = 2
"""Dimensions of a tile; what is kept for each token has one."""


def _fold(module: str, part: str) -> Callable[..., None]:
    """A kernel that reads tiles, and writes the floats of each token or, in a backward pass, over the first tile."""
    name = f"{module.rpartition('.')[2]}_{part}"

    def fold(*args: Any, **_: Any) -> None:
        tensors = [each for each in args if isinstance(each, Tensor)]
        tiles = [each for each in tensors if each.dim() == TILE]
        rows = [each for each in tensors if each.dim() < TILE and each.is_floating_point()]
        launch(name, tiles[:1] if part == "backward" else rows, tensors)

    return fold


KERNELS = {f"{module}._{part}_kernel": _fold(module, part) for module, parts in FOLDS.items() for part in parts}
"""Triton's, by module and name."""


@contextlib.contextmanager
def folding_in_one_kernel() -> Iterator[None]:
    """Let TRL fold tiles as on a card while a program runs, whether it is imported already or meanwhile."""

    def fold_with_kernels(module: types.ModuleType) -> Callable[[], None]:
        stack = contextlib.ExitStack()
        for part in FOLDS[module.__name__]:
            stack.enter_context(replaced(module, f"_{part}_tile", _fold(module.__name__, part)))
        return stack.close

    with contextlib.ExitStack() as stack:
        for name in FOLDS:
            stack.enter_context(after_import(name, fold_with_kernels))
        yield
