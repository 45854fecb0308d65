"""Pipelines by settings: memory of each stage, the job's step, and what further micro-batches take."""

import pytest

import forerun
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting import stages as module
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.repeated_blocks import trace_step_by_blocks


def settings(micro_batches=2, **parallel):
    return settings_from({
        "name": "a", "workload": "causal-lm",
        "model": {
            "name": "tiny-llama", "config": {"num_hidden_layers": 4, "hidden_size": 4096, "intermediate_size": 14336,
                                             "tie_word_embeddings": False},
        },
        "precision": "bf16-mixed", "data": {"examples": 960},
        "batch": {"micro_batch_size": 2, "sequence_length": 2048, "padding": "fixed",
                  "gradient_accumulation_steps": micro_batches},
        "parallel": {"pipeline": 2, **parallel},
    })  # fmt: skip


def test_every_stage_is_a_kind_and_the_worst_decides():
    forecast = forerun.forecast(settings(4), gpu="h100-80gb")
    assert [(kind.ranks, kind.stages, kind.count) for kind in forecast.kinds] == [("0", [0], 1), ("1", [1], 1)]
    assert forecast.memory.peak_allocated_bytes == max(kind.peak_allocated_bytes for kind in forecast.kinds)
    assert forecast.memory.breakdown.total_bytes == forecast.memory.peak_allocated_bytes
    assert sum(forecast.step.phases.model_dump().values()) == pytest.approx(forecast.step.seconds.expected)
    alone = forerun.forecast(settings(4, pipeline=1), gpu="h100-80gb")
    assert forecast.parameters == alone.parameters
    assert forecast.world_size == 2
    assert forecast.run.total_steps == alone.run.total_steps
    assert forecast.step.model_flops == pytest.approx(alone.step.model_flops / 2, rel=0.02), "the mean of the stages"
    assert 0.4 < forecast.step.seconds.expected / alone.step.seconds.expected < 1
    assert all(kind.bubble_seconds > 0 for kind in forecast.kinds)


def test_first_stages_hold_more_micro_batches():
    forecast = forerun.forecast(settings(4, pipeline=4), gpu="h100-80gb")
    between = [kind.peak_allocated_bytes for kind in forecast.kinds[1:3]]
    assert between[0] > between[1], "stage 1 has three micro-batches under way, stage 2 two"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("schedule", "virtual"), [("1f1b", 1), ("interleaved", 2), ("zero-bubble", 2)],
)  # fmt: skip
def test_further_micro_batches_take_what_the_pipeline_repeats(monkeypatch, schedule, virtual):
    asked = settings(18, schedule=schedule, virtual_stages=virtual)
    short = forerun.forecast(asked, gpu="h100-80gb")

    def whole(request, shape):
        (longer,) = module.stage_traces(request, request.settings, shape, [18])
        return module.TracedPipeline(request.settings, longer, [])

    monkeypatch.setattr("forerun.forecasting.step_model.trace_pipeline", whole)
    full = forerun.forecast(asked, gpu="h100-80gb")
    assert short.step.seconds.expected == pytest.approx(full.step.seconds.expected, rel=0.03)
    assert short.memory.peak_allocated_bytes == pytest.approx(full.memory.peak_allocated_bytes, rel=0.01)
    assert short.step.model_flops == pytest.approx(full.step.model_flops, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"micro_batches": 1}, InvalidSettings, "at least its 2 stages"),
        ({"micro_batches": 3, "schedule": "interleaved", "virtual_stages": 2}, InvalidSettings, "Nearest: 4"),
        ({"micro_batches": 4, "data": 2}, NotSupported, "DDP"),
        ({"micro_batches": 8, "pipeline": 8}, InvalidSettings, "found 4 blocks"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        forerun.forecast(settings(**change), gpu="h100-80gb")


def test_what_looks_at_one_rank_says_so():
    with pytest.raises(NotSupported, match="plans and explanations look at one rank"):
        trace_step_by_blocks(settings(2), generic_workload("causal-lm"), device("h100-80gb"), BatchShape(2, 256))


@pytest.mark.medium
def test_stages_in_processes_of_this_machine():
    """As `forerun train --nproc 2` asks before it trains: each stage holds about half, and scoring is timed whole."""
    small = {
        "name": "a", "workload": "causal-lm", "data": {"examples": 96}, "evaluation": {"examples": 8},
        "model": {"name": "tiny-llama", "config": {"num_hidden_layers": 4, "tie_word_embeddings": False}},
        "batch": {"micro_batch_size": 2, "sequence_length": 64, "gradient_accumulation_steps": 4},
    }  # fmt: skip
    one, two = (forerun.forecast({**small, "parallel": {"pipeline": stages}}, gpu="cpu") for stages in (1, 2))
    assert [kind.stages for kind in two.kinds] == [[0], [1]]
    halves = [kind.peak_allocated_bytes for kind in two.kinds]
    assert max(halves) < 0.8 * one.memory.peak_allocated_bytes
    assert sum(halves) > one.memory.peak_allocated_bytes * 0.8
    assert two.run.phases.evaluation_seconds > 0
