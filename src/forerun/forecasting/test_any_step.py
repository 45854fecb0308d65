"""Any program on the virtual GPU: its own loop, what it keeps, and the options of the allocator."""

import pytest
import torch
from torch import nn

import forerun
from forerun.errors import UntraceableOp
from forerun.memory.allocator import AllocatorOptions

WIDTH = 1024


def program(keep):
    """Forward and backward of a linear layer; `keep` holds the output until the next one is there."""

    def build():
        layer = nn.Linear(WIDTH, WIDTH, bias=False)
        inputs = torch.zeros(WIDTH, WIDTH)
        outputs = []

        def step():
            output = layer(inputs)
            if keep:
                outputs[:] = [output]
            loss = output.sum()
            del output
            loss.backward()
            layer.zero_grad()

        return layer, step

    return build


def test_what_the_loop_keeps_alive_counts():
    """Weight and input, output, its gradient expanded and copied for cuBLAS, the weight's gradient: 4 MiB each."""
    freed, retained = (forerun.forecast_step(program(keep)).memory for keep in (False, True))
    assert freed.breakdown.parameter_bytes == 4 * WIDTH**2
    assert retained.peak_allocated_bytes - freed.peak_allocated_bytes == 4 * WIDTH**2


@pytest.mark.parametrize(("truth", "products"), [(True, 2), (False, 1), (None, 1)])
def test_truth_values_are_answered_as_asked(truth, products):
    def build():
        layer = nn.Linear(64, 64, bias=False)
        inputs = torch.zeros(8, 64)

        def step():
            output = layer(inputs)
            if (output > 0).all():
                output = layer(output)
            return output

        return layer, step

    forecast = forerun.forecast_step(build, truth=truth)
    assert forecast.step.model_flops == products * 2 * 8 * 64 * 64
    assert any("reads" in warning for warning in forecast.warnings) is (truth is None)


def test_expandable_segments_reserve_by_pages():
    def build():
        layer = nn.Linear(8, 8)
        device = layer.weight.device

        def step():
            for size in (20, 30, 40, 50):
                torch.zeros(size * 2**18, device=device)

        return layer, step

    plain = forerun.forecast_step(build).memory
    growing = forerun.forecast_step(build, options=AllocatorOptions(expandable_segments=True)).memory
    assert growing.peak_allocated_bytes <= plain.peak_allocated_bytes
    assert growing.peak_reserved_bytes < plain.peak_reserved_bytes


def test_a_program_that_needs_values_is_refused():
    def build():
        layer = nn.Linear(8, 8)
        return layer, lambda: torch.nonzero(layer(torch.zeros(2, 8)))

    with pytest.raises(UntraceableOp):
        forerun.forecast_step(build)
