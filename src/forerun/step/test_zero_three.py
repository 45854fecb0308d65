"""ZeRO-3 by its own arithmetic, and beside DeepSpeed's own engine on the virtual GPU."""

import functools

import pytest
import torch

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.step.split_weights import ZeroSizes
from forerun.trace import OP
from forerun.units import MIB
from forerun.virtual.trace_step import trace_step

RANKS, WIDTH, LAYERS = 4, 512, 2
CONTENT = {
    "name": "z", "workload": "causal-lm", "precision": "bf16-mixed", "model": {"name": "tiny-llama", "config": {
        "vocab_size": 1024, "hidden_size": WIDTH, "intermediate_size": 2048, "num_hidden_layers": LAYERS,
        "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False,
    }},
    "batch": {"micro_batch_size": 2, "sequence_length": 128}, "data": {"examples": 64},
    "optimizer": {"max_gradient_norm": 1.0},
}  # fmt: skip


def settings(offload="none", steps=1, ranks=RANKS, buckets="auto", **changes):
    parallel = {"kind": "ddp", "world_size": ranks, "zero": 3, "offload": offload, "zero_buckets": buckets}
    batch = {**CONTENT["batch"], "gradient_accumulation_steps": steps}
    return settings_from({**CONTENT, "parallel": parallel, "batch": batch, **changes})


@functools.cache
def forecast_of(offload="none", buckets="auto"):
    return forecast(settings(offload, buckets=buckets), "a100-80gb")


def trace_of(given):
    shape = BatchShape(given.batch.micro_batch_size, given.batch.sequence_length)
    return trace_step(given, generic_workload("causal-lm"), device("a100-80gb"), shape)


def warm_calls(trace):
    """Phase, micro-step and call of each operator of the warm step."""
    ops = [trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP]
    return [(op.phase, op.micro_step, trace.calls[op.call]) for op in ops]


def sent(trace, part):
    return [max(spec.bytes for spec in call.inputs) for _, _, call in warm_calls(trace) if part in call.name]


def test_a_rank_keeps_a_part_of_everything():
    result = forecast_of()
    count, breakdown = result.parameters.trainable, result.memory.breakdown
    groups = 2  # with weight decay and without; a block counts whole where less than 1 MiB of it is left
    assert 0 <= breakdown.optimizer_state_bytes - 12 * count / RANKS < 3 * groups * MIB, "fp32 weights and two moments"
    assert 0 <= breakdown.gradient_bytes - 2 * count / RANKS < groups * MIB, "16-bit sums of its parts"


def test_what_is_sent_is_every_weight_each_pass_and_every_gradient_once():
    plain = ZeroSizes.automatic(WIDTH)
    trace = trace_of(settings())
    count, matrices = trace.trainable_parameters, LAYERS * (4 * WIDTH**2 + 3 * WIDTH * 2048) + 2 * 1024 * WIDTH
    assert plain.persistence < WIDTH**2
    gathered = sum(sent(trace, "_allgather_base"))
    # within `reuse` (1e9 elements) nothing is released between the passes; small weights come once after the update
    assert gathered == 2 * (matrices + (count - matrices))
    assert sum(sent(trace, "_reduce_scatter_base")) == 2 * count


def test_gradients_of_every_micro_step_are_sent():
    one, several = (trace_of(settings(steps=steps)) for steps in (1, 3))
    traced = 2  # the second stands for all later ones
    assert sum(sent(several, "_reduce_scatter_base")) == traced * sum(sent(one, "_reduce_scatter_base"))
    steps = {step for _, step, call in warm_calls(several) if "_reduce_scatter_base" in call.name}
    assert steps == {0, 1}


def test_the_bucket_is_there_all_the_time():
    small, large = (forecast_of(buckets=buckets).memory for buckets in ("auto", "deepspeed"))
    more = ZeroSizes().reduce_bucket - ZeroSizes.automatic(WIDTH).reduce_bucket
    assert large.peak_allocated_bytes - small.peak_allocated_bytes > 2 * more


def test_offloading_takes_states_then_parts_to_the_host():
    kept, state, parts = (forecast_of(offload) for offload in ("none", "optimizer", "parameters"))
    count = kept.parameters.trainable
    assert state.memory.breakdown.optimizer_state_bytes == parts.memory.breakdown.optimizer_state_bytes == 0
    assert state.memory.breakdown.gradient_bytes == 0
    less = kept.memory.peak_allocated_bytes - state.memory.peak_allocated_bytes
    assert less > 12 * count / RANKS
    assert parts.memory.peak_allocated_bytes < state.memory.peak_allocated_bytes
    assert any("host's update" in warning for warning in parts.warnings)


def test_parts_on_the_host_cross_the_link_each_time_they_are_gathered():
    trace = trace_of(settings("parameters"))
    gathered = sum(sent(trace, "_allgather_base"))
    assert sum(sent(trace, "copy_from_host_")) == pytest.approx(gathered / RANKS, rel=0.01)


def test_one_device_with_its_weights_on_the_host():
    """No exchange: every weight crosses the link instead."""
    trace = trace_of(settings("parameters", ranks=1))
    assert sent(trace, "_allgather_base") == []
    assert sum(sent(trace, "copy_from_host_")) >= 2 * trace.total_parameters
    with pytest.raises(NotSupported, match="splits nothing over one device"):
        forecast(settings(ranks=1), "a100-80gb")


def test_adapters_beside_split_frozen_weights():
    adapter = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}
    result = forecast(settings(adapter=adapter), "a100-80gb")
    whole = forecast(settings_from({**CONTENT, "adapter": adapter, "precision": "bf16-true"}), "a100-80gb")
    frozen = result.parameters.total - result.parameters.trainable
    less = whole.memory.peak_allocated_bytes - result.memory.peak_allocated_bytes
    assert less < 2 * frozen * (1 - 1 / RANKS), "the model is within `reuse`: gathered weights stay for the other pass"
    assert result.memory.breakdown.optimizer_state_bytes < 13 * result.parameters.trainable


@pytest.mark.parametrize("zero", [2, 3])
def test_adapters_have_sixteen_bits_as_all_of_the_engines_module(zero):
    """peft makes them fp32; the bucket of their gradients was twice as large as DeepSpeed's."""
    given = settings(adapter={"kind": "lora", "rank": 8, "targets": ["q_proj"]})
    given = given.model_copy(update={"parallel": given.parallel.model_copy(update={"zero": zero})})
    with torch.device("meta"):
        model = prepare_model(given, generic_workload("causal-lm"), pretrained=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"quantization": "nf4", "adapter": {"kind": "lora"}}, "quantization='nf4'"),
        ({"precision": "fp32"}, "precision='fp32'"),
        ({"compile": "default"}, "compile"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(changes, says):
    with pytest.raises(NotSupported, match=r"parallel\.zero") as refusal:
        forecast(settings(**changes), "a100-80gb")
    assert says in str(refusal.value)
