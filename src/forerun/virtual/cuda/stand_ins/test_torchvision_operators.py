"""torchvision beside a PyTorch that its operators were not built for."""

import importlib
import sys

import pytest
import torch

import forerun

EXTENSION = """
def _has_ops():
    return False

def _check_cuda_version():
    raise AttributeError("_cuda_version")
"""
DESCRIBED = """
import torch
from torchvision.extension import _has_ops, _check_cuda_version

HAD_OPERATORS = _has_ops()

@torch.library.register_fake("torchvision::nms", allow_override=True)
def nms(dets, scores, iou_threshold):
    return dets.new_empty(len(dets), dtype=torch.long)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """As torchvision imports: its library does not load, and then it describes an operator of it."""
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "extension.py").write_text(EXTENSION)
    (folder / "__init__.py").write_text("from . import extension\nfrom .described import HAD_OPERATORS\n")
    (folder / "described.py").write_text(DESCRIBED)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def test_it_can_be_imported(package):
    with forerun.virtual_cuda("t4"):
        torchvision = importlib.import_module("torchvision")
        assert not torchvision.HAD_OPERATORS  # older ones have no gradients in Python
        boxes, scores = torch.zeros(8, 4, device="cuda"), torch.zeros(8, device="cuda")
        with torch.autocast("cuda", torch.float16):
            assert torch.ops.torchvision.nms(boxes, scores.half(), 0.5).dtype == torch.long


def test_those_with_gradients_in_python_have_all_their_operators(package):
    (package / "_autograd_registrations.py").write_text("")
    with forerun.virtual_cuda("t4"):
        torchvision = importlib.import_module("torchvision")
        assert torchvision.HAD_OPERATORS
        assert torchvision.extension._check_cuda_version() == -1
        schema = torch.ops.torchvision.roi_align.default._schema
        assert [argument.name for argument in schema.arguments][-2:] == ["sampling_ratio", "aligned"]
    assert not torchvision.extension._has_ops()
