"""A program on a virtual GPU: it runs out of memory where the card would, and can recover as on the card."""

import pytest
import torch
from torch import nn

import forerun
from forerun.units import GIB, MIB


def test_a_full_card_raises_where_the_last_tensor_is_made():
    with forerun.virtual_gpu("t4") as gpu:
        tensors = [torch.zeros(GIB, dtype=torch.uint8, device=gpu.device) for _ in range(14)]
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1.00 GiB"):
            tensors.append(torch.zeros(GIB, dtype=torch.uint8, device=gpu.device))
        assert len(tensors) == 14
        tensors.pop()
        tensors.append(torch.zeros(GIB, dtype=torch.uint8, device=gpu.device))
    assert gpu.memory.peak_allocated_bytes == 14 * GIB + 2 * 8_519_680


def test_running_out_in_the_backward_pass_is_the_same_error():
    """Forward of 1 GiB weights fits; their gradients do not."""
    with forerun.virtual_gpu("t4") as gpu:
        weights = [torch.zeros(GIB // 4, device=gpu.device, requires_grad=True) for _ in range(8)]
        with pytest.raises(torch.OutOfMemoryError):
            sum((w * 2).sum() for w in weights).backward()


def test_a_trial_search_finds_the_batch_that_fits():
    """What people do on the card works on the virtual one: halve until it fits."""
    with forerun.virtual_gpu("t4") as gpu:
        layer = nn.Linear(4096, 4096).to(gpu.device)
        batch = 2**20
        while True:
            try:
                layer(torch.zeros(batch, 4096, device=gpu.device)).sum().backward()
                break
            except torch.OutOfMemoryError:
                batch //= 2
    assert batch == 2**18  # 4 GiB in, 4 out, and 4 for the expanded gradient that cuBLAS gets copied


def test_without_a_limit_nothing_fails():
    with forerun.virtual_gpu("t4", limited=False) as gpu:
        torch.zeros(64 * GIB, dtype=torch.uint8, device=gpu.device)
    assert gpu.memory.peak_allocated_bytes > 64 * GIB


def test_peak_is_below_the_card_when_nothing_failed():
    with forerun.virtual_gpu("t4") as gpu:
        nn.Linear(1024, 1024).to(gpu.device)(torch.zeros(8, 1024, device=gpu.device)).sum().backward()
    assert gpu.memory.peak_reserved_bytes < 64 * MIB
