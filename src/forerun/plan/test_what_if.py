"""Lines of `--what-if` against forecasts with the same change."""

from functools import cache

import pytest

from forerun.api import find_device, forecast, request_of
from forerun.plan.what_if import changes, what_if
from forerun.settings.load import settings_from

SETTINGS = settings_from({
    "name": "small", "workload": "causal-lm", "precision": "bf16-mixed", "cross_entropy": "chunked",
    "model": {"name": "tiny-gpt2", "config": {"n_layer": 2, "n_positions": 256}},
    "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "sequence_length": 256},
    "data": {"examples": 6400}, "schedule": {"warmup_steps": 10},
})  # fmt: skip
CLOSE = 0.01
"""Both come from the same traces; a forecast adds its warm step's cache."""


@cache
def lines():
    progress = []
    effects = what_if(SETTINGS, find_device("a100-40gb"), lambda s, d: request_of(s, d, None), progress.append)
    assert len(progress) == 1 + len(list(changes(SETTINGS, find_device("a100-40gb"))))
    return {line.change: line for line in effects}


@pytest.mark.medium
@pytest.mark.parametrize("change", ["activation_checkpointing=blocks", "cross_entropy=full", "precision=tf32"])
def test_a_line_is_the_difference_of_two_forecasts(change):
    now, then = (forecast(SETTINGS, "a100-40gb", overrides) for overrides in ([], [change]))
    line = lines()[change]
    more = then.memory.device_bytes.conservative - now.memory.device_bytes.conservative
    assert line.more_bytes == pytest.approx(more, abs=CLOSE * now.memory.device_bytes.conservative)
    ratio = then.run.phases.training_seconds / now.run.phases.training_seconds
    assert line.time_ratio == pytest.approx(ratio, rel=CLOSE)
    assert not line.changes_method


@pytest.mark.medium
def test_lines_go_from_fast_to_slow_and_know_what_changes_the_method():
    ratios = [line.time_ratio for line in lines().values()]
    assert ratios == sorted(ratios)
    assert lines()["optimizer.name=adamw-8bit optimizer.implementation=auto"].changes_method
    assert lines()["batch.micro_batch_size=4 batch.gradient_accumulation_steps=1"].fits
    assert lines()["activation_checkpointing=blocks"].more_bytes < 0


def test_nothing_is_offered_twice_nor_what_is_set_already():
    offered = [" ".join(overrides) for overrides, _ in changes(SETTINGS, find_device("a100-40gb"))]
    assert len(offered) == len(set(offered))
    assert "cross_entropy=chunked" not in offered
    assert "precision=bf16-mixed" not in offered


@pytest.mark.parametrize(
    ("more", "moved"),
    [
        ({}, "optimizer"),
        ({"adapter": {"kind": "lora"}}, None),  # the state of adapters is small
        ({"optimizer": {"name": "sgd"}}, None),
        ({"parallel": {"shard": 4}}, "parameters"),
        ({"parallel": {"shard": 4}, "adapter": {"kind": "lora"}}, "parameters"),
        ({"parallel": {"shard": 4}, "precision": "fp16-mixed"}, None),
        ({"parallel": {"shard": 2, "pipeline": 2}, "cross_entropy": "full"}, None),
        ({"parallel": {"data": 4}}, None),
        ({"parallel": {"kind": "ddp", "world_size": 4, "zero": 2}}, "optimizer"),
        ({"parallel": {"shard": 4, "offload": "parameters"}}, None),
    ],
)
def test_what_a_program_of_somebody_could_have_in_host_memory_is_offered(more, moved):
    settings = settings_from({**SETTINGS.model_dump(), **more})
    offered = [each for overrides, _ in changes(settings, find_device("a100-40gb")) for each in overrides]
    assert [each for each in offered if "offload" in each] == ([f"parallel.offload={moved}"] if moved else [])
    if moved and "adapter" not in more:
        then = settings_from(settings.model_dump(), [f"parallel.offload={moved}"])
        assert forecast(then, "a100-40gb").memory.breakdown.optimizer_state_bytes < 2**20
