"""Functions of `torch.cuda` that a program may call in passing: each answers as on a card, or is named here."""

import inspect

import pytest
import torch

import forerun
from forerun.hardware.catalogue import device

NOT_ON_A_VIRTUAL_CARD = {"change_current_allocator", "memory_snapshot"}


def questions():
    """Public functions of `torch.cuda` that need no argument."""
    for name in sorted(torch.cuda.__all__):
        function = getattr(torch.cuda, name, None)
        if not inspect.isfunction(function):
            continue
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 2]
        if not needed and name not in NOT_ON_A_VIRTUAL_CARD:
            yield name


def test_every_question_without_an_argument_is_answered():
    names = list(questions())
    assert len(names) > 50
    failures = {}
    with forerun.virtual_cuda("h100-80gb"):
        for name in names:
            try:
                getattr(torch.cuda, name)()
            except Exception as error:
                failures[name] = repr(error)
    assert not failures


def test_statistics_are_the_allocators():
    with forerun.virtual_cuda("a100-80gb"):
        before = torch.cuda.memory_allocated()
        tensor = torch.zeros(1024, 1024, device="cuda")
        more = torch.zeros(1024, 1024, device="cuda")
        del more
        stats = torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() == before + tensor.numel() * 4
        assert stats["allocated_bytes.all.peak"] == before + 2 * tensor.numel() * 4
        assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved()
        assert stats["num_ooms"] == stats["active.all.current"] == 0
        assert "Allocated memory" in torch.cuda.memory_summary()
        assert "GPU reserved memory" in torch.cuda.memory_summary(abbreviated=True)


def test_versions_and_markers():
    with forerun.virtual_cuda("a100-80gb"):
        assert torch.distributed.is_nccl_available()
        assert torch.cuda.nccl.version() >= (2, 10)
        with torch.cuda.nvtx.range("step"):
            assert torch.cuda.nvtx.range_push("inner") == 1
            assert torch.cuda.nvtx.range_pop() == 1
        torch.cuda.profiler.start()
        torch.cuda.profiler.stop()
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        torch.cuda.memory._record_memory_history(max_entries=10)
    assert not hasattr(torch._C, "_nccl_version")


def test_sensors_answer_and_are_noted():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        assert torch.cuda.temperature() > 0
        assert torch.cuda.power_draw() == pytest.approx(400e3)
    assert any("temperature of the GPU" in each for each in gpu.assumed)
    assert any("power that the GPU draws" in each for each in gpu.assumed)


def test_free_memory_is_of_the_whole_card():
    with forerun.virtual_cuda("t4"):
        free, total = torch.cuda.mem_get_info()
    assert total == device("t4").memory_bytes
    assert free < total


def test_streams_are_made_with_a_device_and_a_priority():
    """By their places, as ColossalAI does."""
    with forerun.virtual_cuda("t4"):
        first, second = torch.cuda.Stream(None, -1), torch.cuda.Stream(torch.device("cuda", 0), priority=0)
        assert [first.priority, second.priority, torch.cuda.current_stream().priority] == [-1, 0, 0]
        assert {each.device for each in (first, second)} == {torch.device("cuda", 0)}
