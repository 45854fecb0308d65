"""What libraries write of themselves in processes that are all ours."""

import logging

NOISY = ("torchao", "torch.utils._pytree")
"""Loggers of a torchao that is installed: transformers imports it, and it tells of compiled parts that it lacks."""


def quieten_libraries() -> None:
    """Let them tell of errors only."""
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
