"""What the reasons of a search say, and weights gathered once; the search itself is tested in `test_cluster.py`."""

import pytest

import forerun
from forerun.api import RequestMaker
from forerun.hardware.catalogue import device
from forerun.plan.cluster_search import (
    ClusterCandidate,
    ClusterQuestion,
    ShapeResult,
    _worth_tracing,
    ranked,
    search_layouts,
    slower,
    worth_splitting,
)
from forerun.plan.layouts import ClusterLayout, ModelSize, with_layout
from forerun.plan.shallow import StepEstimate
from forerun.settings.load import settings_from

SETTINGS = settings_from({
    "name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 999},
    "batch": {"gradient_accumulation_steps": 64, "sequence_length": 64},
})  # fmt: skip


def candidate(layout: ClusterLayout, seconds: float, alone: float, needs: float = 1.0) -> ClusterCandidate:
    return ClusterCandidate(layout, with_layout(SETTINGS, layout), StepEstimate(seconds, seconds - alone, alone, needs))


def test_of_equals_the_one_with_more_room_is_first():
    tight, roomy = (candidate(ClusterLayout("fsdp", 8, n), 1.0, 0.9, 1.0 / n) for n in (1, 2))
    other = candidate(ClusterLayout("fsdp", 16), 0.5, 0.4)
    assert ranked([tight, roomy, other], 8) == [roomy, tight]


def test_a_layout_lost_by_its_exchanges_or_by_its_operators():
    best = candidate(ClusterLayout("fsdp", 8), 1.0, 0.95)
    waits = slower(candidate(ClusterLayout("ddp", 8), 1.5, 0.95), best)
    assert waits.cause == "communication"
    assert "+50.0 %: exchanges cost 550 ms of it, 36.7 % of the step is waited for" in waits.text
    works = slower(candidate(ClusterLayout("none", 1, 1, 8, True), 1.2, 1.15), best)
    assert works.cause == "operators"
    assert "its operators alone take 1.15 s, not 950 ms" in works.text


def test_layers_are_split_where_whole_ones_leave_something_to_gain():
    question = ClusterQuestion(SETTINGS, device("t4"), RequestMaker(None), (8, 16), ModelSize(1, 1, {}))
    whole = [candidate(ClusterLayout("fsdp", 8), 8.05, 8.0), candidate(ClusterLayout("fsdp", 16), 6.0, 4.0)]
    split = [ClusterLayout("fsdp", 4, 1, 2), ClusterLayout("fsdp", 8, 1, 2)]
    worth, lost = worth_splitting(question, split, [ShapeResult(candidates=whole, floor=1.0)])
    assert worth == [split[1]]
    assert [(one.gpus, one.cause) for one in lost] == [(8, "not-traced")]
    assert "with nothing recomputed or exchanged it were 8.00 s" in lost[0].text


def test_weights_gathered_once_are_not_traced_where_nothing_is_waited_for():
    waits, runs = candidate(ClusterLayout("fsdp", 8), 1.0, 0.9), candidate(ClusterLayout("fsdp", 16), 1.0, 0.995)
    result = ShapeResult(candidates=[waits, runs, candidate(ClusterLayout("fsdp", 16, 2), 2.0, 1.0)])
    group = [ClusterLayout("fsdp", count, zero=1) for count in (8, 16, 32)]
    assert _worth_tracing(group, result) == [group[0], group[2]]
    assert [(one.gpus, one.cause) for one in result.lost] == [(16, "not-traced")]
    assert "waits for others in 0.5 % of a step" in result.lost[0].text


@pytest.mark.medium
def test_weights_are_gathered_once_a_step_where_exchanges_are_waited_for():
    """Over four machines of one GPU and eight micro-batches: each stage of ZeRO sends less and is faster."""
    width = {"num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024}
    run = settings_from({
        "name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama", "config": width}, "data": {"examples": 99_999},
        "batch": {"gradient_accumulation_steps": 32, "sequence_length": 2048}, "precision": "bf16-mixed",
        "cluster": {"gpus_per_node": 1, "network": "ethernet-10g"},
    })  # fmt: skip
    card = device("h100-80gb").model_copy(update={"memory_bytes": 3 << 30})
    question = ClusterQuestion(run, card, RequestMaker(None), (4,), ModelSize(1, 1, {}))
    result = search_layouts(question, [ClusterLayout("fsdp", 4, zero=stage) for stage in (0, 2, 1)])
    best = {stage: ranked([c for c in result.candidates if c.layout.zero == stage], 4)[0] for stage in (0, 2, 1)}
    first, second, third = (best[stage].estimate.seconds for stage in (0, 2, 1))
    assert third < second < first
    assert best[1].settings.batch.gradient_accumulation_steps > 2
    told = forerun.forecast(best[1].settings, gpu="h100-80gb")
    assert third == pytest.approx(told.step.seconds.expected, rel=1e-3)
