"""Checkpoints that Lightning is asked to load and that a loop which was ended early has not written.

`trainer.test(ckpt_path="best")` takes the weights that are there: their values decide nothing here
(`_CheckpointConnector._parse_ckpt_path`, lightning/pytorch/trainer/connectors/checkpoint_connector.py, 2.6).
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.put_back import replaced

MODULES = tuple(
    f"{package}.trainer.connectors.checkpoint_connector" for package in ("lightning.pytorch", "pytorch_lightning")
)
NAMES = (None, "best", "last")
"""Paths that stand for what the trainer has saved."""


@contextlib.contextmanager
def taking_weights_as_they_are() -> Iterator[None]:
    """While it is active, Lightning goes on without a checkpoint of its own that is not there."""
    with contextlib.ExitStack() as stack:
        for name in MODULES:
            stack.enter_context(after_import(name, _change))
        yield


def _change(module: ModuleType) -> Callable[[], None]:
    owner, stack = module._CheckpointConnector, contextlib.ExitStack()
    if not hasattr(owner, "_parse_ckpt_path"):
        return stack.close
    original = owner._parse_ckpt_path

    def parse(connector: Any, state_fn: Any, ckpt_path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(connector, state_fn, ckpt_path, *args, **kwargs)
        except ValueError:
            if ckpt_path not in NAMES:
                raise
            return None

    stack.enter_context(replaced(owner, "_parse_ckpt_path", parse))
    return stack.close
