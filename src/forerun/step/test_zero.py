"""ZeRO by its own arithmetic: what a rank keeps, what it sends, and that the update is the same as without it."""

import pytest
import torch

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.split_weights import ZeroSizes
from forerun.step.workload import LossSum
from forerun.step.zero import ALIGNMENT
from forerun.trace import OP
from forerun.virtual.trace_step import trace_step

RANKS = 4
CONTENT = {
    "name": "z", "workload": "causal-lm", "precision": "bf16-mixed", "model": {"name": "tiny-llama", "config": {
        "vocab_size": 256, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 4,
    }},
    "batch": {"micro_batch_size": 1, "sequence_length": 32}, "data": {"examples": 64},
}  # fmt: skip


def settings(zero, offload="none", steps=1, **changes):
    parallel = {"kind": "ddp", "world_size": RANKS, "zero": zero, "offload": offload}
    batch = {**CONTENT["batch"], "gradient_accumulation_steps": steps}
    return settings_from({**CONTENT, "parallel": parallel, "batch": batch, **changes})


def trace_of(given):
    shape = BatchShape(given.batch.micro_batch_size, given.batch.sequence_length)
    return trace_step(given, generic_workload("causal-lm"), device("a100-80gb"), shape)


def collectives(trace, part):
    calls = [trace.calls[op.call] for op in trace.ops if op.phase != "prepare"]
    return [max(spec.bytes for spec in call.inputs) for call in calls if part in call.name]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_rank_keeps_sixteen_bit_weights_and_its_part_of_the_rest(stage):
    result = forecast(settings(stage), "a100-80gb")
    count = result.parameters.trainable
    breakdown = result.memory.breakdown
    rounding = 4 * 512 + 2 * ALIGNMENT * RANKS * 12
    assert 0 <= breakdown.parameter_bytes - 2 * count < rounding
    assert 0 <= breakdown.optimizer_state_bytes - 12 * count / RANKS < rounding, "fp32 weights and two moments"


def test_offloaded_state_is_not_on_the_device():
    kept, offloaded = (forecast(settings(2, offload), "a100-80gb") for offload in ("none", "optimizer"))
    assert kept.memory.breakdown.optimizer_state_bytes > 0
    assert offloaded.memory.breakdown.optimizer_state_bytes == 0
    assert any("host's update" in warning for warning in offloaded.warnings)
    trace = trace_of(settings(2, "optimizer"))
    out = collectives(trace, "copy_to_host")
    # gradients of the rank's part leave in fp32; a parameter on its edge is counted whole, as DeepSpeed copies it
    assert (
        kept.parameters.trainable / RANKS * 4 <= sum(out) <= kept.parameters.trainable / RANKS * 4 + 2 * 256 * 1024 * 4
    )


@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_are_reduced_once_a_step_or_once_a_micro_step(stage):
    trace = trace_of(settings(stage, steps=3))
    count = trace.trainable_parameters
    sent = [size for size in collectives(trace, "allreduce") if size > 1024]
    traced = 1 if stage == 1 else 2  # two micro-steps are traced, the second stands for all later ones
    assert sum(sent) == traced * 2 * count
    assert all(op.micro_step == -1 for op in trace.ops if "allreduce" in trace.calls[op.call].name) == (stage == 1)
    gathered = collectives(trace, "all_gather")
    assert 0 <= sum(gathered) - 2 * count < 8 * ALIGNMENT * RANKS


class OverTheStep:
    """A loss that compares all samples of a step: outputs first, then each micro-batch again with its gradient."""

    def __init__(self):
        self._plain = generic_workload("causal-lm")

    def __getattr__(self, name):
        return getattr(self._plain, name)

    def outputs(self, model, batch):
        return (model(input_ids=batch["input_ids"]).logits,)

    def loss_of(self, outputs, batches):
        return LossSum(outputs[0].float().square().sum(), {})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_over_the_whole_step_send_every_gradient_too(stage):
    given = settings(stage, steps=2)
    trace = trace_step(given, OverTheStep(), device("a100-80gb"), BatchShape(1, 32))
    part = "_reduce_scatter_base" if stage == 3 else "allreduce"
    sent = [size for size in collectives(trace, part) if size > 1024]
    assert sum(sent) >= 2 * trace.trainable_parameters


def test_stage_two_never_holds_all_gradients():
    """With one bucket of the documented size alive in both, stage 1 holds the 16-bit gradients beside it."""
    long = {"batch": {"micro_batch_size": 1, "sequence_length": 8, "gradient_accumulation_steps": 2}}
    one, two = (forecast(settings_from({**settings(stage).model_dump(), **long}), "a100-80gb") for stage in (1, 2))
    count = one.parameters.trainable
    buckets = 2 * ZeroSizes().reduce_bucket
    assert two.memory.peak_allocated_bytes > buckets
    assert one.memory.peak_allocated_bytes - two.memory.peak_allocated_bytes > count
    plain = forecast(settings_from({**CONTENT, **long}), "a100-80gb")
    assert plain.memory.peak_allocated_bytes < buckets, "the bucket is the largest block of so small a model"


@pytest.mark.parametrize(
    ("zero", "changes", "says"),
    [
        (3, {"quantization": "nf4", "adapter": {"kind": "lora"}}, "quantization='nf4'"),
        (2, {"precision": "bf16-true"}, "bf16-true"),
        (2, {"optimizer": {"name": "lion"}}, "lion"),
        (1, {"compile": "default"}, "compile"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(zero, changes, says):
    with pytest.raises(NotSupported, match=r"parallel\.zero") as refusal:
        forecast(settings(zero, **changes), "a100-80gb")
    assert says in str(refusal.value)


def kept(zero, steps=5, **layout):
    """Settings of weights that FSDP shards over four ranks."""
    batch = {**CONTENT["batch"], "gradient_accumulation_steps": steps}
    parallel = {"shard": RANKS, "zero": zero, **layout}
    return settings_from({**CONTENT, "batch": batch, "parallel": parallel, "data": {"examples": RANKS * steps * 10}})


@pytest.mark.parametrize(
    ("zero", "gathers", "sends"),
    [(3, [0, 0, 1, 1], [0, 1]), (2, [0], [0, 1]), (1, [0], [2])],
)
def test_sharded_weights_are_gathered_once_a_step_and_gradients_sent_once(zero, gathers, sends):
    """By micro-step of five, of which two or three are traced: blocks once in each pass that has to gather them."""
    trace = trace_of(kept(zero))
    calls = [(op.micro_step, trace.calls[op.call].name) for kind, n in trace.events[trace.warm_from :] if kind == OP
             for op in [trace.ops[n]]]  # fmt: skip
    at = {part: [step for step, name in calls if part in name] for part in ("_allgather_base", "_reduce_scatter_base")}
    blocks = CONTENT["model"]["config"]["num_hidden_layers"]
    groups = blocks + 1  # what is in no block is gathered with the root, once for both passes
    assert sorted(set(at["_allgather_base"])) == sorted(set(gathers))
    assert len(at["_allgather_base"]) == (groups if zero < 3 else 2 * (groups + blocks))
    assert sorted(at["_reduce_scatter_base"]) == sorted(sends * groups)
    assert sum(trace.repeats(step) for step in range(trace.micro_steps)) == trace.accumulation == 5


@pytest.mark.medium
def test_gradients_that_wait_are_whole_and_in_fp32():
    """Stage 1 holds weights in 2 bytes and gradients in 4; stage 3 a quarter of the latter, and a block or two of both."""
    config = {**CONTENT["model"]["config"], "num_hidden_layers": 32}
    deep = {"model": {"name": "tiny-llama", "config": config}}
    one, three = (forecast(settings_from({**kept(zero).model_dump(), **deep}), "a100-80gb") for zero in (1, 3))
    count = one.parameters.trainable
    more = one.memory.peak_allocated_bytes - three.memory.peak_allocated_bytes
    assert 4.5 * count < more < 5 * count
    assert one.memory.breakdown.optimizer_state_bytes == three.memory.breakdown.optimizer_state_bytes
    assert one.memory.breakdown.gradient_bytes > 3.9 * count


@pytest.mark.medium
def test_steps_are_as_long_as_their_micro_batches():
    """Each of 8 micro-batches more takes what the middle one does: no gathers, no sending."""
    times = [forecast(kept(1, steps), "a100-80gb").step.seconds.expected for steps in (3, 4, 12)]
    assert times[2] - times[0] == pytest.approx(9 * (times[1] - times[0]), rel=0.02)
    slower = forecast(kept(3, 12), "a100-80gb").step.seconds.expected
    assert times[2] < slower


@pytest.mark.medium
def test_stages_do_so_anyway():
    batch = {**CONTENT["batch"], "padding": "fixed", "gradient_accumulation_steps": 4}
    words = {**CONTENT, "batch": batch, "model": {"name": "tiny-llama", "config": {"tie_word_embeddings": False}}}
    plain, said = (
        forecast(settings_from({**words, "parallel": {"shard": 2, "pipeline": 2, **more}}), "a100-80gb")
        for more in ({}, {"zero": 1})
    )
    assert (said.step.seconds.expected, said.memory) == (plain.step.seconds.expected, plain.memory)
    with pytest.raises(NotSupported, match=r"parallel\.zero.*Set it to 1"):
        forecast(settings_from({**words, "parallel": {"shard": 2, "pipeline": 2, "zero": 2}}), "a100-80gb")


def test_training_says_why_not():
    with pytest.raises(NotSupported, match="is forecast here, not trained"):
        build_step(settings(1), generic_workload("causal-lm"), "cpu", pretrained=False)


def test_the_weights_of_a_group_are_views_of_one_buffer():
    from forerun.step.zero import _Part

    parameters = [torch.nn.Parameter(torch.randn(3, 5)), torch.nn.Parameter(torch.randn(7))]
    before = [p.shape for p in parameters]
    part = _Part({"params": parameters}, RANKS, is_on_host=False)
    assert [p.shape for p in parameters] == before
    assert part.flat.numel() == 24, "22 elements, aligned to two for each of four ranks"
    assert part.size == 6
    assert part.owned == {id(parameters[0])}
    assert {p.untyped_storage()._cdata for p in parameters} == {part.flat.untyped_storage()._cdata}
