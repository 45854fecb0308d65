"""Pipelines are bounded by their bubble, and what shallow stages say of deep ones is what the forecast says."""

import pytest

import forerun
from forerun.api import RequestMaker
from forerun.hardware.catalogue import device
from forerun.plan.cluster_search import ClusterCandidate, ClusterQuestion, ShapeResult, slower
from forerun.plan.layouts import ClusterLayout, ModelSize, with_layout
from forerun.plan.pipelines import MOST_TRACED, PipelineStep, bubble_fraction, search_pipeline, worth_piping
from forerun.plan.shallow import StepEstimate
from forerun.plan.space import with_batch
from forerun.settings.load import settings_from
from forerun.units import GIB

BLOCKS = 6
SETTINGS = settings_from({
    "name": "deep", "workload": "causal-lm", "precision": "bf16-mixed", "data": {"examples": 999},
    "model": {"name": "tiny-llama", "config": {
        "num_hidden_layers": BLOCKS, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 8192, "tie_word_embeddings": False,
    }},
    "batch": {"gradient_accumulation_steps": 8, "sequence_length": 1024},
})  # fmt: skip
PAIR = ClusterLayout("none", 1, pipeline=2)
MEMORY_TOLERANCE = 0.08
"""Reserved bytes grow by more than the allocated ones that are continued: 4.9 % at 16 blocks of width 2048."""


def question(memory_bytes: float = 80 * GIB) -> ClusterQuestion:
    card = device("h100-80gb").model_copy(update={"memory_bytes": int(memory_bytes)})
    return ClusterQuestion(SETTINGS, card, RequestMaker(None), (2,), ModelSize(1, 1, {}, BLOCKS))


def test_the_bubble_is_shared_by_micro_batches_and_parts():
    assert bubble_fraction(ClusterLayout("none", 1, pipeline=4), 12) == pytest.approx(3 / 12)
    assert bubble_fraction(ClusterLayout("none", 1, pipeline=4, virtual_stages=2), 12) == pytest.approx(3 / 24)


def test_pipelines_whose_bubble_alone_is_too_long_are_not_traced():
    whole = ClusterLayout("fsdp", 2)
    fast = StepEstimate(4.1, 0.1, 4.0, 1.0)
    results = [ShapeResult(candidates=[ClusterCandidate(whole, with_layout(SETTINGS, whole), fast)], floor=1.0)]
    worth, lost = worth_piping(question(), [PAIR], results)
    assert (worth, [one.cause for one in lost]) == ([], ["bubble"])
    assert "with a bubble of 12.5 % and nothing recomputed or exchanged it were 4.50 s" in lost[0].text
    slow = ClusterCandidate(whole, with_layout(SETTINGS, whole), StepEstimate(1.51 * 4.5, 0.1, 4.0, 1.0))
    assert worth_piping(question(), [PAIR], [ShapeResult(candidates=[slow], floor=1.0)]) == ([PAIR], [])
    assert worth_piping(question(), [PAIR], []) == ([PAIR], [])


def test_too_few_micro_batches_and_too_many_pipelines_say_so():
    deep = ClusterLayout("none", 1, pipeline=16)
    worth, lost = worth_piping(question(), [deep], [])
    assert (worth, lost[0].cause, lost[0].text) == ([], "batch", "8 micro-batches for each pipeline of 16 stages")
    many = [ClusterLayout("fsdp", 1, 1, tensor, pipeline=8 // tensor) for tensor in (1, 2, 4)]
    many += [ClusterLayout("fsdp", 1, 1, tensor, True, 1, 8 // tensor, 2) for tensor in (1, 2, 4)]
    worth, lost = worth_piping(question(), many, [])
    assert len(worth) == MOST_TRACED
    assert {one.cause for one in lost} == {"not-traced"}
    assert len(lost) == len(many) - MOST_TRACED


def test_a_layout_lost_by_its_bubble():
    best = ClusterCandidate(PAIR, SETTINGS, StepEstimate(1.0, 0.0, 1.0, 1.0))
    waits = slower(ClusterCandidate(PAIR, SETTINGS, StepEstimate(1.4, 0.0, 1.4, 1.0, 0.4)), best)
    assert waits.cause == "bubble"
    assert "stages wait 400 ms of it for each other" in waits.text


@pytest.mark.medium
def test_shallow_stages_continued_are_what_the_whole_pipeline_is():
    settings = with_batch(with_layout(SETTINGS, PAIR), 1, 8)
    step, told = PipelineStep.at(question(), settings), forerun.forecast(settings, gpu="h100-80gb")
    assert step.estimate.seconds == pytest.approx(told.step.seconds.expected, rel=0.01)
    assert step.estimate.device_bytes == pytest.approx(told.memory.device_bytes.conservative, rel=MEMORY_TOLERANCE)
    assert 0 < step.estimate.bubble_seconds < step.estimate.seconds


@pytest.mark.medium
def test_without_room_a_pipeline_is_lost_with_its_bytes():
    result = search_pipeline(question(1 * GIB), PAIR)
    assert (result.candidates, [one.cause for one in result.lost]) == ([], ["memory"])
    assert "of 1.00 GiB with as much recomputed as can be" in result.lost[0].text
