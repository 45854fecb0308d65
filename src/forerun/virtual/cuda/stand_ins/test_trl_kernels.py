"""TRL's loss in tiles: one launch for each, whether TRL is imported before or while the program runs."""

import sys
import types

import pytest
import torch

import forerun
from forerun.virtual.cuda.stand_ins.triton_kernels import _launcher

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


def test_a_kernel_of_triton_is_known_by_its_module():
    """Its name alone is anybody's."""

    def _forward_kernel(*args):
        raise AssertionError("it is not run")

    counted = []
    with forerun.virtual_cuda("t4") as gpu:
        tile, totals = torch.zeros(64, 512, device="cuda"), torch.zeros(64, device="cuda")
        for module in (NAME, "somebody.else"):
            _forward_kernel.__module__ = module
            kernel = types.SimpleNamespace(fn=_forward_kernel, run=lambda *_, grid, **__: counted.append(grid))
            _launcher(kernel, (64,))(tile, 512, totals, BLOCK_SIZE=1024)
        last = gpu.trace.calls[gpu.trace.ops[-1].call]
    assert counted == [(64,)], "the other goes to Triton's own launch"
    assert last.name == "forerun.chunked_logprob_forward.default"
    assert (last.bytes_read, last.bytes_written) == (64 * 512 * 4 + 64 * 4, 64 * 4)
