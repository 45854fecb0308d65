"""CUDA graphs as PyTorch's documentation captures them: replays issue the same kernels and allocate nothing."""

import pytest
import torch
from torch import nn

import forerun
from forerun.trace import ALLOCATE

STEPS = 3


def network():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()


def test_whole_step_captured_and_replayed():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        model, loss = network(), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows, target = torch.randn(32, 256, device="cuda"), torch.randn(32, 16, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            optimizer.zero_grad(set_to_none=True)
            loss(model(rows), target).backward()
            optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            begin = len(gpu.trace.ops)
            value = loss(model(rows), target)
            value.backward()
            optimizer.step()
            captured = gpu.trace.ops[begin:]
        assert not torch.cuda.is_current_stream_capturing()
        before, begin = torch.cuda.memory_allocated(), len(gpu.trace.ops)
        events = len(gpu.trace.events)
        for _ in range(STEPS):
            rows.copy_(torch.randn(32, 256, device="cuda"))
            graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        assert value.item() is not None
    calls = gpu.trace.calls
    replayed = [calls[op.call] for op in gpu.trace.ops[begin:] if calls[op.call].issuer == "graph"]
    assert [call.name for call in replayed] == [calls[op.call].name for op in captured] * STEPS
    allocations = [i for kind, i in gpu.trace.events[events:] if kind == ALLOCATE]
    assert len(allocations) == STEPS  # of the new rows alone


def test_memory_that_a_capture_freed_stays_its_own():
    with forerun.virtual_cuda("a100-80gb"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(100 * 2**18, device="cuda")
        reserved = torch.cuda.memory_reserved()
        other = torch.zeros(100 * 2**18, device="cuda")
        assert torch.cuda.memory_reserved() >= reserved + other.numel() * 4
        shared = torch.cuda.CUDAGraph()
        reserved = torch.cuda.memory_reserved()
        with torch.cuda.graph(shared, pool=graph.pool()):
            torch.zeros(100 * 2**18, device="cuda")
        assert torch.cuda.memory_reserved() == reserved


def test_graphed_callables_train():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        model, sample = network(), torch.randn(32, 256, device="cuda", requires_grad=True)
        model = torch.cuda.make_graphed_callables(model, (sample,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(32, 256, device="cuda", requires_grad=True)).sum().backward()
            optimizer.step()
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert "graph" in {gpu.trace.calls[op.call].issuer for op in gpu.trace.ops}


def test_misuse_is_an_error_as_on_the_card():
    with forerun.virtual_cuda("a100-80gb"):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
        with pytest.raises(RuntimeError, match="without capture_begin"):
            graph.capture_end()
