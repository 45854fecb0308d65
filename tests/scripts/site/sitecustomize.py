"""Lets a torchvision that was built for CUDA be imported beside a PyTorch without CUDA: names of two operators.

torchvision/_meta_registrations.py (0.28) describes them at import and fails where the library with them cannot load.
"""

from importlib.util import find_spec
from pathlib import Path

package = find_spec("torchvision")
if package is not None and package.origin is not None:
    import torch

    try:
        torch.ops.load_library(str(Path(package.origin).parent / "_C.so"))
    except OSError:
        names = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            names.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
