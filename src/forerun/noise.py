"""What libraries write of themselves in processes that are all ours."""

import contextlib
import logging
import os
from collections.abc import Iterator

NOISY = ("torchao", "torch.utils._pytree")
"""Loggers of a torchao that is installed: transformers imports it, and it tells of compiled parts that it lacks."""


def quieten_libraries() -> None:
    """Let them tell of errors only; before PyTorch is loaded, its C++ part too."""
    # fake process groups have no backend, and say so each time
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what a library says while it is imported: of packages, or of a GPU, that nobody needs here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
