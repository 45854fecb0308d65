"""TRL's loss in tiles: one launch for each, whether TRL is imported before or while the program runs."""

import sys
import types

import pytest
import torch

import forerun
from forerun.virtual.cuda.stand_ins.trl_kernels import KERNELS, folding_in_one_kernel

NAME = "trl.kernels.chunked_logprob"
SOURCE = """
import torch

def _forward_tile(tile, stride, targets, best, BLOCK_SIZE):
    best.copy_(tile.float().exp().amax(-1))

def _backward_tile(tile, stride, targets, log_z, BLOCK_SIZE):
    tile.copy_(tile.float().exp() - log_z.unsqueeze(-1))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "trl" / "kernels"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").write_text("")
    (folder / "chunked_logprob.py").write_text(SOURCE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        del sys.modules[name]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_tile_is_folded_by_one_kernel(package, is_there):
    if is_there:
        __import__(NAME)
    with forerun.virtual_cuda("t4") as gpu:
        __import__(NAME)
        module = sys.modules[NAME]
        tile, rows = torch.zeros(64, 512, device="cuda", dtype=torch.bfloat16), torch.zeros(64, device="cuda")
        targets = torch.zeros(64, dtype=torch.long, device="cuda")
        before = len(gpu.trace.ops)
        module._forward_tile(tile, 512, targets, rows, BLOCK_SIZE=1024)
        module._backward_tile(tile, 512, targets, rows, BLOCK_SIZE=1024)
        calls = [gpu.trace.calls[op.call] for op in gpu.trace.ops[before:]]
        peak = gpu.memory.peak_allocated_bytes
    assert [call.name.split(".")[1] for call in calls] == ["chunked_logprob_forward", "chunked_logprob_backward"]
    assert [call.bytes_written for call in calls] == [64 * 4, 64 * 512 * 2]
    assert peak == 64 * 512 * 2 + 64 * 8 + 64 * 8, "and no copy of the tile in float32"
    module._forward_tile(torch.ones(2, 3), 3, None, torch.zeros(2), BLOCK_SIZE=1024)  # its own again


def test_kernels_of_triton_are_known_by_their_module():
    assert f"{NAME}._forward_kernel" in KERNELS
    with folding_in_one_kernel():
        assert types.FunctionType is type(KERNELS["trl.kernels.chunked_divergence._backward_kernel"])
