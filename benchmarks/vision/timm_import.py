"""Import timm beside a PyTorch that its torchvision was not built for."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch


def import_timm() -> Any:
    """The module `timm`.

    torchvision/_meta_registrations.py (0.28) describes two operators of its library at import, and fails where the
    library cannot be loaded: then their names are enough, since no classification model calls them.

    Raises:
        ModuleNotFoundError: timm is not there.
    """
    package = find_spec("torchvision")
    if package is not None and package.origin is not None and not hasattr(torch.ops.torchvision, "nms"):
        try:
            torch.ops.load_library(str(Path(package.origin).parent / "_C.so"))
        except OSError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
    return importlib.import_module("timm")
