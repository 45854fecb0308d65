"""Any program on the virtual GPU: its own loop, what it keeps, and the options of the allocator."""

from pathlib import Path

import pytest
import torch
from torch import nn

import forerun
from forerun.clock.priors import PriorCosts
from forerun.errors import UntraceableOp
from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import device
from forerun.memory.allocator import AllocatorOptions
from forerun.trace import HOST_BYTES

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


def test_a_copy_to_the_host_takes_as_long_as_one_from_it():
    def build():
        layer, inputs = nn.Linear(WIDTH, WIDTH, bias=False), torch.zeros(WIDTH, WIDTH, device="cpu")
        return layer, lambda: layer(inputs.to("cuda")).detach().cpu()

    gpu = device("rtx-3090")
    costs, trace = PriorCosts(gpu), trace_program(build, gpu)
    seconds = [costs.device_seconds(call) for call in trace.calls if HOST_BYTES in dict(call.keywords)]
    assert len(seconds) == 2
    assert seconds[0] == seconds[1] > 4 * WIDTH**2 / gpu.host_link_bytes_per_second


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


def test_sizes_that_depend_on_values_are_assumed_and_said():
    """Before, such a program was refused; `forerun exec` takes as many as there can be, and says so with its line."""

    def build():
        layer = nn.Linear(8, 8)
        return layer, lambda: torch.nonzero(layer(torch.zeros(2, 8)))

    (assumed,) = forerun.forecast_step(build).assumed
    assert assumed.line.startswith("test_any_step.py:")
    assert "nonzero of 16 values" in assumed.what


def test_a_program_that_fails_is_refused():
    def build():
        raise TypeError("no such layer")

    with pytest.raises(TypeError, match="no such layer"):
        forerun.forecast_step(build)
    with pytest.raises(UntraceableOp, match="exit code 3"):
        forerun.forecast_step(lambda: exit(3))


def moved_to_cuda():
    """Model and batch are made on the host and moved, as scripts do."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False, device="cpu").cuda()
    inputs = torch.zeros(WIDTH, WIDTH, device="cpu")

    def step():
        layer(inputs.to("cuda")).sum().backward()
        layer.zero_grad()

    return layer, step


def made_in_place():
    """The step makes its batch without naming a device."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def step():
        layer(torch.zeros(WIDTH, WIDTH)).sum().backward()
        layer.zero_grad()

    return layer, step


def test_tensors_land_on_the_device_however_they_are_made():
    peaks = [forerun.forecast_step(build).memory.peak_allocated_bytes for build in (moved_to_cuda, made_in_place)]
    assert peaks[0] == peaks[1]


def test_the_program_meets_the_card():
    """`torch.cuda` answers, known values are known, and files are thrown away."""
    answers = []

    def build():
        layer = nn.Linear(8, 8)
        mask = torch.tensor([1, 0, 1, 1])

        def step():
            answers.append((torch.cuda.get_device_capability(), mask.sum().item(), str(mask.device)))
            torch.save(layer.state_dict(), "layer.pt")
            layer(torch.zeros(mask.nonzero().shape[0], 8)).sum().backward()

        return layer, step

    forecast = forerun.forecast_step(build, gpu="t4")
    assert answers == [((7, 5), 3, "cuda:0")] * 2
    assert forecast.assumed == []
    assert not Path("layer.pt").exists()
    assert forecast.step.model_flops == 2 * 2 * 3 * 8 * 8  # the batch needs no gradient


def test_a_step_has_findings_with_lines():
    def build():
        layer, unused = nn.Linear(512, 512), nn.Linear(512, 512)
        optimizer = torch.optim.SGD([*layer.parameters(), *unused.parameters()], lr=0.1)

        def step():
            layer(torch.zeros(4096, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return nn.ModuleList([layer, unused]), step

    findings = {finding.kind: finding for finding in forerun.forecast_step(build).findings}
    assert set(findings) == {"no-gradient", "fp32-product"}
    assert findings["no-gradient"].bytes == 4 * (512 * 512 + 512)
    assert all(finding.line.startswith("test_any_step.py:") for finding in findings.values())


def test_throughput_is_of_the_samples_that_the_caller_names():
    step = forerun.forecast_step(made_in_place, samples=7, tokens=70).step
    assert step.samples_per_second == pytest.approx(7 / step.seconds.expected)
    assert step.tokens_per_second == pytest.approx(70 / step.seconds.expected)


@pytest.mark.medium
def test_compiled_code_in_a_step_is_captured():
    """Three pointwise operators are three kernels forward; compiled they are one."""

    def build(compiles):
        layer = nn.Linear(256, 256)

        def activate(x):
            return (x * 2 + 1).tanh()

        function = torch.compile(activate) if compiles else activate
        return layer, lambda: function(layer(torch.zeros(64, 256))).sum().backward()

    eager, compiled = (trace_program(lambda c=c: build(c), device("a100-40gb")) for c in (False, True))
    kernels = [[c.name for c in t.calls if c.name.startswith("fused.")] for t in (eager, compiled)]
    assert kernels[0] == []
    assert len(kernels[1]) >= 2, "one forward, one backward"
    assert not any(c.name.startswith("aten.tanh.") for c in compiled.calls)
