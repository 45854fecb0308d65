"""What the reasons of a search say; the search itself is tested in `test_cluster.py`."""

from forerun.api import RequestMaker
from forerun.hardware.catalogue import device
from forerun.plan.cluster_search import ClusterCandidate, ClusterQuestion, ShapeResult, ranked, slower, worth_splitting
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
