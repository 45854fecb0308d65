"""State and activations on the host: what leaves the device, what crosses the link, and how long that takes."""

import pytest
import torch

from forerun.api import forecast
from forerun.clock.priors import HOST_LINK_SHARE, HOST_MEMORY_BYTES_PER_SECOND, PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.data.plan import BatchShape
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.offload import MINIMAL_ELEMENTS
from forerun.step.training_step import StepObserver
from forerun.trace import ADAM_PASSES, ALLOCATE, FREE, HOST_BYTES
from forerun.units import format_bytes
from forerun.virtual.trace_step import trace_step

CONTENT = {
    "name": "o", "workload": "causal-lm", "precision": "bf16-true", "model": {"name": "tiny-llama", "config": {
        "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    }},
    "batch": {"micro_batch_size": 4, "sequence_length": 512}, "data": {"examples": 64},
}  # fmt: skip
UNTIED = {**CONTENT["model"], "config": {**CONTENT["model"]["config"], "tie_word_embeddings": False}}
GPU = "a100-80gb"


def settings(**changes):
    return settings_from({**CONTENT, **changes})


def trace_of(given):
    shape = BatchShape(given.batch.micro_batch_size, given.batch.sequence_length)
    return trace_step(given, generic_workload("causal-lm"), device(GPU), shape)


def carried(trace, phase):
    keywords = [dict(trace.calls[op.call].keywords) for op in trace.ops if op.phase == phase]
    return sum(each.get(HOST_BYTES, 0) for each in keywords)


def test_the_state_of_large_parameters_is_on_the_host():
    plain, offloaded = (forecast(settings(parallel={"offload": what}), GPU) for what in ("none", "optimizer"))
    small = 5 * 512  # the vectors of the norms
    assert plain.memory.breakdown.optimizer_state_bytes > 4 * (plain.parameters.trainable - small)
    assert offloaded.memory.breakdown.optimizer_state_bytes < 4 * small + 5 * 3 * 512
    assert offloaded.memory.breakdown.gradient_bytes == plain.memory.breakdown.gradient_bytes
    large = plain.parameters.trainable - small
    updating = ADAM_PASSES * 2 * large / HOST_MEMORY_BYTES_PER_SECOND
    assert offloaded.step.phases.optimizer_seconds == pytest.approx(updating, rel=0.3)
    assert any("host memory at 100 GB/s" in warning for warning in offloaded.warnings)


def test_a_backward_pass_waits_for_a_slow_link():
    trace, gpu = trace_of(settings(parallel={"offload": "optimizer"})), device(GPU)
    slow = gpu.model_copy(update={"host_link_bytes_per_second": 1e8})
    longer = replay_clock(trace, PriorCosts(slow)).seconds - replay_clock(trace, PriorCosts(gpu)).seconds
    crossing = 2 * (trace.trainable_parameters - 5 * 512) / (1e8 * HOST_LINK_SHARE)
    assert longer == pytest.approx(2 * crossing, rel=0.1)  # gradients, and weights that come back
    seconds = sum(PriorCosts(slow).device_seconds(call) for call in trace.calls if "copy_to_host" in call.name)
    assert seconds > 0


def test_every_gradient_crosses_once_beside_the_backward_pass():
    trace = trace_of(settings(parallel={"offload": "optimizer"}))
    copies = [
        trace.calls[op.call] for op in trace.ops
        if trace.calls[op.call].name.startswith("forerun.copy_to_host") and op.phase == "backward"
    ]  # fmt: skip
    sizes = [call.inputs[0].bytes for call in copies]
    assert min(sizes) >= 2 * MINIMAL_ELEMENTS
    assert sum(sizes) == 2 * (trace.trainable_parameters - 5 * 512)


def test_activations_cross_twice_and_leave_the_peak():
    plain, offloaded = (forecast(settings(activation_offload=value), GPU) for value in (False, True))
    trace = trace_of(settings(activation_offload=True))
    out, back = carried(trace, "forward"), carried(trace, "backward")
    assert out == back > plain.memory.breakdown.activation_bytes / 2
    saved = plain.memory.peak_allocated_bytes - offloaded.memory.peak_allocated_bytes
    assert saved > plain.memory.breakdown.activation_bytes / 3
    link = 31.508e9 * HOST_LINK_SHARE  # PCIe 4.0 x16
    longer = offloaded.step.seconds.expected - plain.step.seconds.expected
    assert longer == pytest.approx((out + back) / link, rel=0.35)


def test_shards_on_the_host_cross_before_they_are_gathered_and_gradients_after_they_are_reduced():
    shards = {"precision": "bf16-mixed", "model": UNTIED}
    plain, offloaded = (
        forecast(settings(**shards, parallel={"shard": 2, **more}), GPU) for more in ({}, {"offload": "parameters"})
    )
    memory = offloaded.memory.breakdown
    assert (memory.parameter_bytes, memory.optimizer_state_bytes) == (0, 0)
    states = plain.memory.breakdown.parameter_bytes + plain.memory.breakdown.optimizer_state_bytes
    saved = plain.memory.peak_allocated_bytes - offloaded.memory.peak_allocated_bytes
    assert saved == pytest.approx(states, rel=0.001)  # at the logits, where no part is being copied
    own = 4 * plain.parameters.total / 2
    updating = ADAM_PASSES * own / HOST_MEMORY_BYTES_PER_SECOND
    assert offloaded.step.phases.optimizer_seconds == pytest.approx(updating, rel=0.1)
    assert any(f"take at least {format_bytes(4 * own)} of the host" in each for each in offloaded.warnings)
    assert not any("by the fused kernel" in each for each in offloaded.warnings)


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"replicate": 2}, {"zero": 2}])
def test_shards_of_other_layouts_live_on_the_host_too(layout):
    given = settings(precision="bf16-mixed", model=UNTIED, parallel={"shard": 2, "offload": "parameters", **layout})
    trace = trace_of(given)
    alive = set()
    for kind, index in trace.events[: trace.warm_from]:
        alive.add(index) if kind == ALLOCATE else alive.discard(index) if kind == FREE else None
    assert sum(trace.storages[index].bytes for index in alive) < 2**16  # rotary frequencies, ids
    shares = 2 * layout.get("tensor", 1)
    assert carried(trace, "forward") == pytest.approx(4 * trace.total_parameters / shares, rel=0.01)


def test_copies_of_shards_go_beside_the_passes_until_the_link_is_slow():
    given = settings(precision="bf16-mixed", model=UNTIED, parallel={"shard": 2, "offload": "parameters"})
    trace, gpu = trace_of(given), device(GPU)
    own = 4 * trace.total_parameters / 2
    assert carried(trace, "forward") == own
    assert 1.5 * own < carried(trace, "backward") <= 2 * own  # what the forward pass kept to the end is still there
    times = []
    for rate in (1e15, 31.5e9, 1e8):
        cost = PriorCosts(gpu.model_copy(update={"host_link_bytes_per_second": rate}))
        times.append(replay_clock(trace, cost).seconds)
    crossing = own / (1e8 * HOST_LINK_SHARE)
    assert times[1] < 1.5 * times[0]
    assert times[2] == pytest.approx(2 * crossing + crossing, rel=0.15)  # forward, and both ways at once, and the rest


def test_a_step_that_offloads_activations_is_the_same_step():
    losses = []
    for value in (False, True):
        torch.manual_seed(0)
        given = settings(
            activation_offload=value, precision="fp32", batch={"micro_batch_size": 2, "sequence_length": 8}
        )
        step = build_step(given, generic_workload("causal-lm"), "cpu", pretrained=False)
        batch = {key: torch.ones_like(each) for key, each in step.workload.example_batch(given, 2, 8).items()}
        losses.append([step.run([batch], StepObserver()).loss.item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), "fp32 sums of copies at other addresses"
    assert losses[0][2] < losses[0][0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parallel": {"offload": "parameters"}}, "ZeRO-3"),
        ({"parallel": {"kind": "fsdp", "world_size": 2, "offload": "optimizer"}}, "parallel.zero"),
        ({"parallel": {"shard": 2, "offload": "parameters"}, "precision": "fp16-mixed"}, "loss scale"),
        ({"parallel": {"tensor": 2, "offload": "optimizer"}}, "parts of split layers from FSDP"),
        (
            {"parallel": {"shard": 2, "zero": 1, "engine": "megatron", "offload": "parameters"}},
            "what it offloads",
        ),
        ({"parallel": {"shard": 2, "pipeline": 2, "offload": "parameters"}}, "pipeline=2"),
        ({"parallel": {"offload": "optimizer"}, "optimizer": {"name": "sgd"}}, "sgd"),
    ],
)
def test_what_is_not_offloaded_here_is_refused_by_name(changes, says):
    with pytest.raises(NotSupported, match=r"parallel\.offload") as refusal:
        forecast(settings(**changes), GPU)
    assert says in str(refusal.value)


def test_training_says_why_not():
    with pytest.raises(NotSupported, match="is forecast here, not trained"):
        build_step(
            settings(parallel={"offload": "optimizer"}, precision="fp32"), generic_workload("causal-lm"), "cpu",
            pretrained=False,
        )  # fmt: skip
