"""Layouts multiply to their GPUs, make valid settings, and their bounds are below what is needed."""

import pytest

from forerun.api import request_of
from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.plan.layouts import (
    ClusterLayout,
    ModelSize,
    counts_of,
    indivisible,
    layouts_of,
    least_bytes,
    model_size,
    require_searchable,
    with_layout,
)
from forerun.settings.load import settings_from

RUN = {
    "name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "sequence_length": 64}, "data": {"examples": 999},
}  # fmt: skip


@pytest.mark.parametrize("gpus", [1, 2, 6, 8, 24, 64, 1024])
def test_every_layout_has_its_gpus_and_makes_settings(gpus):
    settings = settings_from(RUN)
    layouts = list(layouts_of(settings, gpus))
    assert len(set(layouts)) == len(layouts) > 0
    for layout in layouts:
        spread = with_layout(settings, layout)
        assert layout.gpus == spread.parallel.world_size == gpus
        assert layout.data_ranks == spread.parallel.data_ranks
        assert layout.tensor == spread.parallel.tensor <= 8
        assert layout.shard * layout.replicate * layout.tensor * layout.pipeline == (
            gpus if layout.kind == "fsdp" else layout.tensor * layout.pipeline
        )


def test_the_space_has_copies_shards_copies_of_shards_and_split_layers():
    words = [layout.description for layout in layouts_of(settings_from(RUN), 64)]
    for word in (
        "data 64",
        "shard 64",
        "shard 8 × replicate 8",
        "shard 32 × replicate 2",
        "shard 8 × tensor 8 (sequence)",
    ):
        assert word in words


def test_long_sequences_of_one_length_are_split_inside_a_machine():
    long = {"batch": {"sequence_length": 32768, "gradient_accumulation_steps": 8}}
    settings = settings_from(RUN | long | {"model": {"name": "llama-3.1-8b"}})
    split = [layout for layout in layouts_of(settings, 64) if layout.context > 1]
    assert {layout.context for layout in split} == {2, 4, 8}
    assert "shard 8 × context 8" in [layout.description for layout in split]
    assert "shard 2 × replicate 16 × context 4" not in [layout.description for layout in split]
    for layout in split:
        spread = with_layout(settings, layout).parallel
        assert (spread.world_size, spread.data_ranks, spread.shard_ranks) == (64, layout.data_ranks, layout.shard)
    assert all(layout.context == 1 for layout in layouts_of(settings_from(RUN), 64))
    packed = settings.model_copy(update={"batch": settings.batch.model_copy(update={"padding": "packed"})})
    assert all(layout.context == 1 for layout in layouts_of(packed, 64))


def test_weights_gathered_once_are_tried_where_a_rank_has_several_rows():
    words = [layout.description for layout in layouts_of(settings_from(RUN), 4)]
    assert {"shard 4 × ZeRO-2", "shard 4 × ZeRO-1", "shard 2 × tensor 2 × ZeRO-1 (sequence)"} <= set(words)
    assert not [word for word in words if "ZeRO" in word and ("pipeline" in word or "data" in word)]
    assert not [layout for layout in layouts_of(settings_from(RUN), 8) if layout.zero and layout.data_ranks == 8]
    spread = with_layout(settings_from(RUN), next(one for one in layouts_of(settings_from(RUN), 4) if one.zero == 1))
    assert (spread.parallel.zero, spread.parallel.keeps_gathered) == (1, True)


def test_numbers_of_gpus_as_the_command_line_names_them():
    assert counts_of("8..1024") == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert counts_of("8..20") == [8, 16, 20]
    assert counts_of("24,8,24") == [8, 24]
    assert counts_of("64") == [64]
    for text in ("", "0..8", "16..8", "8...64", "a", "8,-1"):
        with pytest.raises(InvalidSettings, match="as 8..1024"):
            counts_of(text)


def test_least_bytes_are_sixteen_a_parameter_by_adamw_over_the_ranks_that_split_them():
    size = ModelSize(10_000, 10_000, {"attention heads": 12})
    settings = settings_from(RUN)
    assert least_bytes(settings, ClusterLayout("ddp", 8), size) == 160_000
    assert least_bytes(settings, ClusterLayout("fsdp", 8, 2, 2), size) == 160_000 / 4 / 2
    assert indivisible(ClusterLayout("fsdp", 1, 1, 8), size) == "12 attention heads cannot be divided by tensor=8"
    assert indivisible(ClusterLayout("fsdp", 1, 1, 4), size) == ""


def test_the_bound_lies_below_the_state_of_a_forecast_and_near_it():
    import forerun

    settings = with_layout(settings_from(RUN), ClusterLayout("fsdp", 2))
    size = model_size(request_of(settings, device("h100-80gb"), None))
    told = forerun.forecast(settings, gpu="h100-80gb").memory.breakdown
    state = told.parameter_bytes + told.gradient_bytes + told.optimizer_state_bytes
    assert 0.5 * state < least_bytes(settings, ClusterLayout("fsdp", 2), size) <= 1.1 * state


def test_other_ways_over_gpus_are_refused():
    with pytest.raises(InvalidSettings, match="parallel.zero=2"):
        require_searchable(settings_from(RUN | {"parallel": {"data": 8, "zero": 2}}))
    with pytest.raises(InvalidSettings, match="pipeline=2"):
        require_searchable(settings_from(RUN | {"parallel": {"pipeline": 2}}))


def test_words_of_the_program_are_those_of_every_layout():
    """Exchanges in parts where layers are split along the sequence; Megatron gathers once a step and has no DDP."""
    words = {"tensor": 2, "sequence_parallel": True, "async_tensor": True, "engine": "megatron"}
    settings = settings_from(RUN | {"parallel": words})
    require_searchable(settings)
    layouts = list(layouts_of(settings, 64))
    assert {layout.kind for layout in layouts} == {"fsdp", "none"}
    assert all(layout.zero == (layout.pipeline == 1) for layout in layouts if layout.kind == "fsdp")
    for layout in layouts[:: len(layouts) // 6]:
        parallel = with_layout(settings, layout).parallel
        assert (parallel.engine, parallel.async_tensor) == ("megatron", layout.sequence_parallel)
    words = {"shard": 8, "zero": 1, "expert": 8, "engine": "megatron", "expert_overlap": True}
    settings = settings_from(RUN | {"parallel": words})
    for layout in list(layouts_of(settings, 16, experts=16))[::10]:
        assert with_layout(settings, layout).parallel.expert_overlap == (layout.expert > 1)


def test_pipelines_have_whole_or_split_layers_and_one_part_or_several():
    layouts = [layout for layout in layouts_of(settings_from(RUN), 64) if layout.pipeline > 1]
    words = [layout.description for layout in layouts]
    for word in ("shard 32 × pipeline 2", "shard 2 × tensor 8 × pipeline 4 of 2 parts (sequence)"):
        assert word in words
    assert max(layout.pipeline for layout in layouts) == 16
    assert indivisible(ClusterLayout("none", 1, pipeline=4, virtual_stages=2), ModelSize(1, 1, {}, 7)) != ""
    assert indivisible(ClusterLayout("none", 1, pipeline=4, virtual_stages=2), ModelSize(1, 1, {}, 8)) == ""
