"""Which layouts are split, over how many ranks, and which are refused with the nearest right ones."""

import pytest

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import refuse_unsupported
from forerun.step.heads import generic_workload
from forerun.step.tensor_parallel import require_divisible
from forerun.trace import Category
from forerun.train.ranks import join_group
from forerun.virtual.trace_step import trace_step

FLOAT_BYTES = 4


def settings(model="tiny-llama", **changes):
    return settings_from(
        {
            "name": "t", "workload": "causal-lm", "model": {"name": model},
            "batch": {"micro_batch_size": 2, "sequence_length": 32}, **changes,
        }
    )  # fmt: skip


def traced(**changes):
    return trace_step(settings(**changes), generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, 32))


def of_parameters(trace):
    return sum(storage.bytes for storage in trace.storages if storage.owner is Category.PARAMETER)


def test_a_layout_says_strategy_devices_and_ranks_of_data():
    layout = settings(parallel={"shard": 4, "replicate": 2, "tensor": 8, "sequence_parallel": True}).parallel
    assert (layout.kind, layout.world_size, layout.data_ranks) == ("fsdp", 64, 8)
    assert settings(parallel={"tensor": 2}).parallel.kind == "none"
    assert settings(parallel={"data": 4}).parallel == settings(parallel={"kind": "ddp", "world_size": 4}).parallel
    assert settings(parallel={"kind": "fsdp", "world_size": 8, "tensor": 2}).parallel.data_ranks == 4
    accumulated = settings(parallel={"shard": 4, "tensor": 2})
    assert accumulated.global_batch_size == 2 * 4


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"data": 2, "shard": 2}, "parallel.replicate"),
        ({"shard": 2, "world_size": 8}, "follows from the layout"),
        ({"kind": "fsdp", "world_size": 6, "tensor": 4}, "Nearest: 8"),
        ({"kind": "ddp", "world_size": 4, "replicate": 2}, "divides the ranks"),
        ({"sequence_parallel": True}, "tensor=1"),
        ({"world_size": 2, "tensor": 2, "async_tensor": True}, "sequence_parallel=false"),
        ({"shard": 0}, "greater than or equal|1 or more"),
    ],
)
def test_wrong_layouts_are_refused_with_the_right_ones(parallel, message):
    with pytest.raises(InvalidSettings, match=message):
        settings(parallel=parallel)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": {"kind": "ddp", "world_size": 4, "tensor": 2}}, "DDP takes no parameters"),
        ({"adapter": {"kind": "lora", "dora": True}}, "adapter.dora"), ({"compile": "default"}, "compiled"),
        ({"workload": "masked-lm"}, "causal-lm"), ({"activation_offload": True}, "whole tensors to the host"),
        ({"optimizer": {"name": "adafactor"}}, "cannot factor"), ({"optimizer": {"name": "lion"}}, "whole tensors"),
        ({"optimizer": {"name": "paged-adamw-8bit"}}, "whole tensors"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(changes, message):
    with pytest.raises(NotSupported, match=message):
        refuse_unsupported(settings(**{"parallel": {"tensor": 2}, **changes}))


def test_models_without_a_plan_and_numbers_that_do_not_divide_heads_are_refused():
    with pytest.raises(NotSupported, match="no plan"):
        trace_step(
            settings("tiny-gpt2", parallel={"tensor": 2}), generic_workload("causal-lm"), device("t4"), BatchShape(1, 16)
        )  # fmt: skip
    from transformers import LlamaConfig

    class Heads:
        config = LlamaConfig(num_attention_heads=32, num_key_value_heads=8, intermediate_size=11008)

    with pytest.raises(InvalidSettings, match="found 6 with 32 attention heads. Nearest: 4, 8"):
        require_divisible(Heads(), 6)  # type: ignore[arg-type]


@pytest.mark.medium
def test_each_rank_holds_its_part_and_sequence_parallel_holds_less():
    alone, split, along = (
        traced(parallel=parallel)
        for parallel in ({}, {"tensor": 2}, {"tensor": 2, "shard": 4, "sequence_parallel": True})
    )
    assert split.total_parameters == alone.total_parameters
    assert of_parameters(split) == pytest.approx(of_parameters(alone) / 2, rel=0.02)
    assert of_parameters(along) == pytest.approx(of_parameters(alone) / 8, rel=0.05)
    names = {along.calls[op.call].name for op in along.ops}
    assert {
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.all_gather_into_tensor.default",
    } <= names


def test_exchanges_in_parts_are_forecast_faster_and_not_trained():
    layout, h100 = {"tensor": 4, "sequence_parallel": True}, device("h100-80gb")
    model = {"name": "llama-3-8b", "config": {"num_hidden_layers": 1}}
    base = {"name": "t", "workload": "causal-lm", "model": model, "precision": "bf16-true"}
    whole, parts = (settings_from({**base, "parallel": layout | more}) for more in ({}, {"async_tensor": True}))
    steps = [trace_step(each, generic_workload("causal-lm"), h100, BatchShape(1, 4096)) for each in (whole, parts)]
    assert [step.async_tensor for step in steps] == [False, True]
    times = [replay_clock(step, PriorCosts.of(step, h100, world_size=4)).phases for step in steps]
    assert 0 < times[1].communication_seconds < 0.6 * times[0].communication_seconds
    assert times[1].backward_seconds <= times[0].backward_seconds
    with pytest.raises(NotSupported, match=r"parallel\.async_tensor"):
        join_group(parts, "cpu")
