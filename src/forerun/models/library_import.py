"""Importing timm, torchvision and diffusers, which are the user's own: where one is missing, with its install line."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forerun.errors import UnknownModel
from forerun.models.guard import guarded


def import_library(library: str) -> Any:
    """The module of that name, also beside a PyTorch that torchvision's own operators were not built for.

    torchvision/_meta_registrations.py (0.28) describes two of them at import, and fails where their library cannot be
    loaded: then their names are enough, since no classification model calls them.

    Raises:
        UnknownModel: it is not there, or cannot be imported.
    """
    import torch

    package = find_spec("torchvision")
    if package is not None and package.origin is not None and not hasattr(torch.ops.torchvision, "nms"):
        try:
            torch.ops.load_library(str(Path(package.origin).parent / "_C.so"))
        except OSError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou) -> Tensor")
    with guarded(
        UnknownModel,
        f"model.name: a model of {library} is described by {library} itself, which cannot be imported here",
        f"Install it: pip install {library}.",
    ):
        return importlib.import_module(library)
