"""What the host computes between kernels is in the trace, with what it costs and without what is timed elsewhere."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import forerun
from forerun.clock.issuing import PASS_BYTES_PER_SECOND, STAGING_BYTES_PER_SECOND, host_seconds
from forerun.trace import Issuer
from forerun.units import NANO


@pytest.fixture
def gpu():
    with forerun.virtual_cuda("a100-40gb") as gpu:
        yield gpu


def work(gpu):
    """Name and seconds of all that the host did itself."""
    calls = [gpu.trace.calls[op.call] for op in gpu.trace.ops]
    return [(call.name, host_seconds(call)) for call in calls if call.issuer == Issuer.HOST]


@pytest.mark.parametrize(
    ("make", "name", "each"),
    [
        (lambda: torch.randn(1000, 1000), "randn", 4.4), (lambda: torch.rand(1000, 100), "rand", 2.6),
        (lambda: torch.randint(0, 9, (10_000,)), "randint", 3.1), (lambda: torch.randperm(10_000), "randperm", 13),
        (lambda: torch.randn_like(torch.empty(10_000)), "randn_like", 4.4),
    ],
)  # fmt: skip
def test_random_numbers_cost_the_host_by_their_kind(gpu, make, name, each):
    numbers = make().numel()
    ((recorded, seconds),) = work(gpu)
    assert recorded.startswith(f"host.aten.{name}.")
    assert seconds == pytest.approx(numbers * each * NANO)


def test_what_is_small_or_only_looks_is_no_work(gpu):
    small = torch.randn(8, 8) + 1
    large = torch.empty(1000, 1000)
    assert (small[0].shape, large.t()[2:].shape) == ((8,), (998, 1000))
    assert work(gpu) == []


def test_a_pass_costs_what_it_reads_and_writes(gpu):
    numbers = torch.arange(1_000_000)
    numbers = numbers + 1
    (_, one_way), (_, both_ways) = work(gpu)
    assert both_ways == pytest.approx(2 * one_way)


def test_rows_of_a_table_cost_what_the_rows_hold(gpu):
    table, rows = torch.arange(4_000_000).view(1000, 4000), torch.tensor([3, 7, 9] * 40)
    before = len(work(gpu))
    batch = table[rows]
    table[rows] = batch
    table.index_copy_(0, rows[:3], batch[:3])
    (taken, seconds), (put, putting) = work(gpu)[before:]
    assert (taken, put) == ("host.aten.index.Tensor", "host.aten.index_put_.default")
    size = batch.numel() * 8 + rows.numel() * 8
    assert seconds == pytest.approx((size + batch.numel() * 8) / PASS_BYTES_PER_SECOND)
    assert putting == pytest.approx(2 * size / PASS_BYTES_PER_SECOND)


@pytest.mark.parametrize("pins", [False, True])
def test_pageable_memory_is_staged_and_pinned_memory_is_not(gpu, pins):
    batch = torch.arange(100_000)
    before = len(work(gpu))
    (batch.pin_memory() if pins else batch).cuda()
    later = work(gpu)[before:]
    assert later == ([] if pins else [("host.staged_copy.default", 800_000 / STAGING_BYTES_PER_SECOND)])


@pytest.mark.parametrize(("blocks", "waits"), [({}, True), ({"non_blocking": True}, False)])
def test_a_copy_to_the_card_blocks_unless_it_is_told_not_to(gpu, blocks, waits):
    torch.arange(100_000).pin_memory().cuda(**blocks)
    torch.arange(100_000).pin_memory().to("cuda", **blocks)
    target = torch.empty(100_000, dtype=torch.int64, device="cuda")
    target.copy_(torch.arange(100_000), **blocks)
    copies = [gpu.trace.calls[op.call] for op in gpu.trace.ops if "copy" in gpu.trace.calls[op.call].name]
    assert [call.syncs for call in copies if call.issuer != Issuer.HOST] == 3 * [waits]


@pytest.mark.parametrize("pins", [False, True])
def test_batches_of_a_loader_are_timed_by_it_alone(pins):
    with forerun.virtual_cuda("a100-40gb") as gpu:
        rows = torch.arange(100_000).view(10, 10_000)
        before = len(work(gpu))
        for (batch,) in DataLoader(TensorDataset(rows), batch_size=10, pin_memory=pins):
            batch.cuda(non_blocking=True)
        assert [name for name, _ in work(gpu)[before:]] == ([] if pins else ["host.staged_copy.default"])
