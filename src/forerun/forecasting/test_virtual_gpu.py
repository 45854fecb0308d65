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
    assert gpu.memory.peak_allocated_bytes == 14 * GIB


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
    assert gpu.memory.peak_allocated_bytes == 64 * GIB


def test_peak_is_below_the_card_when_nothing_failed():
    with forerun.virtual_gpu("t4") as gpu:
        nn.Linear(1024, 1024).to(gpu.device)(torch.zeros(8, 1024, device=gpu.device)).sum().backward()
    assert gpu.memory.peak_reserved_bytes < 64 * MIB


def test_plain_host_tensors_land_where_they_are_moved():
    with forerun.virtual_gpu("t4") as gpu:
        layer = nn.Linear(1024, 1024)
        batch = torch.arange(8 * 1024).reshape(8, 1024).to(gpu.device)
        layer.to(gpu.device)(batch.float()).sum().backward()
        assert batch[0, :3].tolist() == [0, 1, 2], "values that are known stay known"
        assert batch.device == gpu.device == torch.device("cuda", 0)
    breakdown = gpu.memory.breakdown
    assert breakdown.parameter_bytes == 4 * 1024 * 1025
    assert breakdown.gradient_bytes == 4 * 1024 * 1024, "at the peak, before that of the bias"


def test_attention_is_the_one_asked_for():
    def kernels(attention):
        with forerun.virtual_gpu("a100-40gb", attention=attention) as gpu:
            x = torch.zeros(2, 8, 128, 64, dtype=torch.bfloat16, device=gpu.device)
            nn.functional.scaled_dot_product_attention(x, x, x)
        return {call.name for call in gpu.trace.calls if "attention" in call.name or "softmax" in call.name}

    assert kernels("auto") == {"aten._scaled_dot_product_flash_attention.default"}
    assert kernels("sdpa:efficient") == {"aten._scaled_dot_product_efficient_attention.default"}
    assert kernels("sdpa:math") == {"aten._safe_softmax.default"}


def test_what_ran_is_forecast_as_a_program_is():
    with forerun.virtual_gpu("t4") as gpu:
        layer = nn.Linear(512, 512).to(gpu.device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(3):
            loss = layer(torch.zeros(64, 512, device=gpu.device)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    forecast = gpu.forecast
    assert forecast.script.steps_seen == 3
    assert forecast.memory.peak_allocated_bytes == gpu.memory.peak_allocated_bytes
    assert forecast.step.samples_per_second == pytest.approx(64 / forecast.step.seconds.expected)
    assert [entry.line.startswith("test_virtual_gpu.py:") for entry in forecast.assumed] == [True]
    assert gpu.assumed


def test_a_card_without_limit_tells_its_own_size():
    with forerun.virtual_gpu("t4", limited=False) as gpu:
        free, total = torch.cuda.mem_get_info()
        torch.zeros(64 * GIB, dtype=torch.uint8, device=gpu.device)
        assert 14 * GIB < free <= total < 16 * GIB
        assert torch.cuda.mem_get_info()[0] == 0
