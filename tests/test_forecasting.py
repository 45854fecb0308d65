"""From request to forecast: what each setting does to the numbers, the public Python interface, and timing the CPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import forerun
from forerun.api import find_device, forecast_settings, request_of
from forerun.data.plan import BatchShape
from forerun.errors import UnknownDevice, UntraceableOp
from forerun.experience import Correction, CorrectionTerm
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import Generated, MeasuredTimes
from forerun.hardware.detect import detect_cpu
from forerun.hardware.micro_benchmarks import matmul_peak, step_overhead_seconds
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual import operator_timing
from forerun.virtual.operator_timing import time_calls
from forerun.virtual.trace_step import trace_step

BASE = {
    "name": "f", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 4, "sequence_length": 64}, "data": {"examples": 400},
}  # fmt: skip


def forecast(gpu="a100-40gb", **sections):
    return forerun.forecast({**BASE, **sections}, gpu=gpu)


def test_parts_add_up():
    result = forecast()
    assert result.memory.breakdown.total_bytes == result.memory.peak_allocated_bytes
    assert sum(result.step.phases.model_dump().values()) == pytest.approx(result.step.seconds.expected)
    assert sum(result.run.phases.model_dump().values()) == pytest.approx(result.run.seconds.expected)
    assert result.run.total_steps == 100
    assert result.detail.timeline[-1].seconds == pytest.approx(result.step.seconds.expected, rel=0.05)
    peaks = [point.bytes.total_bytes for point in result.detail.timeline]
    assert max(peaks) <= result.memory.peak_allocated_bytes


def test_accumulation_multiplies_time_not_activations():
    one, four = forecast(), forecast(batch={**BASE["batch"], "gradient_accumulation_steps": 4})
    ratio = four.step.phases.forward_seconds / one.step.phases.forward_seconds
    assert ratio == pytest.approx(4, rel=0.01)
    assert four.memory.breakdown.activation_bytes == pytest.approx(one.memory.breakdown.activation_bytes, rel=0.1)
    assert four.step.model_flops == pytest.approx(4 * one.step.model_flops)


def test_checkpointing_shows_in_hardware_flops():
    plain, blocks = forecast(), forecast(activation_checkpointing="blocks")
    assert plain.step.hardware_flops == plain.step.model_flops == blocks.step.model_flops
    assert blocks.step.hardware_flops > blocks.step.model_flops


def test_optimizers_differ_by_their_state():
    state = {
        name: forecast(optimizer={"name": name}).run.checkpoint_bytes for name in ("adamw", "sgd", "adafactor")
    }  # fmt: skip
    assert state["adafactor"] < state["sgd"] < state["adamw"]


def test_frozen_epochs_are_quicker_than_full_ones():
    schedule = {"epochs": 2}
    full = forecast(schedule=schedule)
    frozen = forecast(schedule={**schedule, "frozen_encoder_epochs": 1})
    assert frozen.run.phases.training_seconds < full.run.phases.training_seconds


def test_evaluation_and_generation_take_time():
    without = forecast()
    scored = forecast(evaluation={"examples": 100})
    generated = forecast(evaluation={"examples": 100, "new_tokens": 32})
    assert without.run.phases.evaluation_seconds == 0
    assert 0 < scored.run.phases.evaluation_seconds < generated.run.phases.evaluation_seconds


def test_price_is_hours_times_price_and_may_be_unknown():
    result = forecast("t4", precision="fp16-mixed")
    from forerun.hardware.catalogue import device

    price = device("t4").price_per_hour
    assert result.run.cost == pytest.approx(price * result.run.seconds.expected / 3600)
    assert forecast("rtx-5000", precision="fp16-mixed").run.cost is None


def build():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.zeros(32, 3, 16, 16)

    def step():
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def test_a_step_of_your_own():
    result = forerun.forecast_step(build, gpu="t4", samples=32)
    parameters = 8 * 27 + 8 + 8 * 256 * 10 + 10
    assert result.parameters.total == parameters
    breakdown = result.memory.breakdown
    assert breakdown.total_bytes == result.memory.peak_allocated_bytes
    assert breakdown.parameter_bytes >= 4 * parameters
    assert breakdown.optimizer_state_bytes >= 8 * parameters
    assert result.step.phases.backward_seconds > 0 < result.step.phases.optimizer_seconds
    assert result.step.samples_per_second == pytest.approx(32 / result.step.seconds.expected)


def test_a_step_that_cannot_be_traced_is_named():
    def bad():
        return nn.Linear(2, 2), lambda: torch.zeros(2, 3) @ torch.zeros(2, 3)

    with pytest.raises(UntraceableOp, match="cannot be traced"):
        forerun.forecast_step(bad, gpu="t4")


def test_a_model_on_a_virtual_gpu():
    with forerun.virtual_gpu("a100-40gb") as gpu:
        model = nn.Linear(1024, 1024, bias=False).to(gpu.device)
        inputs = torch.zeros(8, 1024, device=gpu.device)
        model(inputs).sum().backward()
    weight, rows = 4 * 1024 * 1024, 4 * 8 * 1024
    workspaces = 2 * 8_519_680
    assert 2 * weight + rows < gpu.memory.peak_allocated_bytes - workspaces < 2 * weight + 4 * rows
    assert gpu.clock.seconds > 0
    assert gpu.clock.model_flops == 2 * 2 * 8 * 1024 * 1024, "input needs no gradient: one product forward, one back"
    with pytest.raises(UnknownDevice):
        forerun.virtual_gpu("a100")


def test_every_call_of_a_cpu_step_is_timed_or_named():
    settings = settings_from({**BASE, "precision": "fp32"})
    trace = trace_step(settings, generic_workload("causal-lm"), detect_cpu().device, BatchShape(4, 64))
    seconds = time_calls(trace, torch.device("cpu"))
    used = {trace.calls[op.call] for op in trace.ops if op.phase.value != "prepare"}
    kernels = {call for call in used if not call.is_view}
    missing = {call.name for call in kernels - set(seconds)}
    assert all(value > 0 for value in seconds.values())
    assert len(missing) <= 0.2 * len(kernels), missing
    assert not any("mm" in name or "softmax" in name or "adamw" in name for name in missing)


def test_small_calls_may_be_timed_on_tensors_that_are_near(monkeypatch):
    settings = settings_from({**BASE, "precision": "fp32"})
    trace = trace_step(settings, generic_workload("causal-lm"), detect_cpu().device, BatchShape(4, 64))
    far = []
    monkeypatch.setattr(operator_timing, "repeated_seconds", lambda run, device, evict: far.append(evict) or [1.0])
    tensors, evictions = operator_timing._Tensors(torch.device("cpu")), set()
    for call in trace.calls:
        if call.name.startswith("aten.") and operator_timing._time_call(call, tensors, 2**30, 2**18):
            size = sum(spec.bytes for spec in (*call.inputs, *call.outputs))
            assert far[-1] == (size >= 2**18), call.name
            evictions.add(far[-1])
    assert evictions == {True, False}


def test_the_cpus_rates_are_plausible():
    here = torch.device("cpu")
    assert 1e8 < matmul_peak(here, torch.float32, side=256) < 1e14
    assert 0 <= step_overhead_seconds(here) < 1e-2


def test_checkpoints_in_the_background_are_waited_for_only_where_the_disk_is_slower_than_the_steps():
    def seconds(**how):
        return forecast(checkpoints={"every_steps": 10, **how}).run.phases.checkpoint_seconds

    whole, last = seconds(background="never"), seconds(background="auto")
    assert last == pytest.approx(whole / 10), "ten are written, the last one is waited for"
    busy = forecast(checkpoints={"every_steps": 1, "background": "always"})
    each = whole / 10
    expected = each + 99 * max(0.0, each - busy.step.seconds.expected)
    assert busy.run.phases.checkpoint_seconds == pytest.approx(expected)


def test_work_that_is_kept_for_later_runs_is_not_corrected_by_runs_that_found_it_done():
    settings = settings_from(BASE)
    request = request_of(settings, find_device("a100-40gb"), None)
    experience = Correction(terms={"startup": CorrectionTerm(factor=4.0, spread=0.1)})
    times = MeasuredTimes(startup_seconds=1.0, once_seconds=5.0)
    first = make_forecast(replace(request, times=times, correction=experience))
    assert first.run.phases.startup_seconds == pytest.approx(4 * 1.0 + 5.0)
    assert first.detail.corrected_by["startup"] == pytest.approx(9.0 / 6.0)
    later = make_forecast(replace(request, times=replace(times, once_seconds=0.0), correction=experience))
    assert later.run.phases.startup_seconds == pytest.approx(4.0)
    assert later.detail.corrected_by["startup"] == pytest.approx(4.0)


@pytest.mark.medium
def test_generation_takes_as_long_as_its_tokens():
    """Seconds are linear in the tokens, none are none, and what is not known is `evaluation.new_tokens`."""
    settings = settings_from({**BASE, "evaluation": {"examples": 0, "new_tokens": 40}})
    request = request_of(settings, find_device("a100-40gb"), None)

    def seconds(tokens, prompts=8, longest=None):
        times = MeasuredTimes(final_evaluation_examples=1, generated=Generated(((prompts, tokens),), None, longest))
        return make_forecast(replace(request, times=times)).run.phases.evaluation_seconds

    ten, twenty, forty = seconds(10), seconds(20), seconds(40)
    assert forty - twenty == pytest.approx(2 * (twenty - ten))
    assert seconds(None) == pytest.approx(forty)
    assert seconds(0) < ten / 5
    assert seconds(10, prompts=16) - seconds(0) == pytest.approx(2 * (ten - seconds(0)))


@pytest.mark.medium
def test_long_prompts_take_longer_to_generate_from():
    """Where reading them is work: a small model on a large card only issues kernels, whatever their length."""
    batch = {"micro_batch_size": 32, "sequence_length": 2048}
    sections = {"model": {"name": "smollm2-135m"}, "batch": batch, "evaluation": {"examples": 0, "new_tokens": 10}}
    settings = settings_from({**BASE, "precision": "fp16-mixed", **sections})
    request = request_of(settings, find_device("t4"), None)

    def seconds(longest):
        times = MeasuredTimes(final_evaluation_examples=1, generated=Generated(((32, 10),), None, longest))
        return make_forecast(replace(request, times=times)).run.phases.evaluation_seconds

    assert seconds(8) < 0.5 * seconds(None)


@pytest.mark.medium
def test_variants_on_the_cpu_time_what_they_share_once(monkeypatch):
    """A sweep over ranks: all products but those of the adapter are the same."""
    visited = []
    timed_once = operator_timing._time_call
    monkeypatch.setattr(
        operator_timing, "_time_call", lambda call, *rest: visited.append(call) or timed_once(call, *rest)
    )
    adapters = [{"adapter": {"kind": "lora", "rank": rank}} for rank in (4, 8)]
    variants = [settings_from({**BASE, "precision": "fp32", **adapter}) for adapter in adapters]
    timed, here = {}, detect_cpu().device
    first = forecast_settings(variants[0], here, timed_calls=timed)
    calls = set(visited)
    assert calls >= set(timed) > set()
    visited.clear()
    second = forecast_settings(variants[1], here, timed_calls=timed)
    assert set(visited)
    assert not set(visited) & calls
    assert len(set(visited)) < 0.6 * len(calls)
    visited.clear()
    again = forecast_settings(variants[0], here, timed_calls=timed)
    assert not visited
    assert again.parameters == first.parameters != second.parameters
