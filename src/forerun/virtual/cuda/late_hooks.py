"""What a library does to gradients from a later step on, while a program is watched for few: it begins at once.

PowerSGD leaves the first thousand steps alone (`PowerSGDState`, torch/distributed/algorithms/ddp_comm_hooks, 2.13);
then it holds an error of every gradient, and compresses what is reduced.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.put_back import replaced

MODULE = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
FIRST_STEP = 2
"""Before it DDP makes its buckets anew, and PowerSGD refuses to begin."""


@contextlib.contextmanager
def beginning_at_once(note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, PowerSGD begins at the third step; `note` hears where the program says a later one."""

    def change(module: ModuleType) -> Callable[[], None]:
        original = module.PowerSGDState.__init__

        def init(state: Any, *args: Any, **kwargs: Any) -> None:
            original(state, *args, **kwargs)
            if state.start_powerSGD_iter > FIRST_STEP:
                note(f"that PowerSGD leaves {state.start_powerSGD_iter:,} steps alone", "it begins at the third")
                state.start_powerSGD_iter = FIRST_STEP

        stack = contextlib.ExitStack()
        stack.enter_context(replaced(module.PowerSGDState, "__init__", init))
        return stack.close

    with after_import(MODULE, change):
        yield
