"""Plans over numbers of GPUs on a small card: what is taken fits and keeps the limits, what is not says why."""

import io
from functools import cache

import pytest

import forerun
from forerun.api import RequestMaker
from forerun.errors import UnknownNetwork
from forerun.hardware.catalogue import Device, device
from forerun.plan.choose import PlanLimits
from forerun.plan.cluster import ClusterFindings, plan_within, search_cluster
from forerun.plan.cluster_outcome import ClusterPlan
from forerun.plan.cluster_search import ClusterQuestion, possible_layouts
from forerun.plan.fan_out import InThisProcess
from forerun.plan.layouts import ModelSize, layouts_of
from forerun.report.cluster_plan import cluster_plan_view
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import GIB

RUN = {
    "name": "small", "workload": "causal-lm", "precision": "bf16-mixed", "data": {"examples": 99_999},
    "model": {"name": "tiny-llama", "config": {
        "num_hidden_layers": 2, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 16384, "max_position_embeddings": 4096,
    }},
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "sequence_length": 4096},
    "schedule": {"max_steps": 10_000}, "cluster": {"gpus_per_node": 2, "network": "ib-ndr400"},
}  # fmt: skip


def card(memory_bytes: float) -> Device:
    return device("h100-80gb").model_copy(update={"memory_bytes": int(memory_bytes)})


@cache
def findings(memory_bytes: float) -> ClusterFindings:
    return search_cluster(settings_from(RUN), card(memory_bytes), (2, 4), RequestMaker(None), InThisProcess())


def planned(memory_bytes: float, **limits: float) -> ClusterPlan:
    return plan_within(findings(memory_bytes), PlanLimits(**limits))


def chosen(document: ClusterPlan) -> Settings:
    assert document.plan.settings is not None
    return settings_from(document.plan.settings)


def test_an_unknown_network_is_an_error_and_no_reason_why_layouts_lost():
    run = settings_from(RUN | {"cluster": {"gpus_per_node": 2, "network": "100gbe"}})
    with pytest.raises(UnknownNetwork, match="No network named '100gbe'"):
        search_cluster(run, card(GIB), (4,), RequestMaker(None), InThisProcess())


@pytest.mark.medium
def test_each_row_fits_keeps_the_global_batch_and_is_what_the_forecast_says():
    document = planned(80 * GIB)
    assert [row.gpus for row in document.rows] == [2, 4]
    for row in document.rows:
        settings = settings_from(RUN | {
            "parallel": row.parallel, "activation_checkpointing": row.activation_checkpointing,
            "batch": {**RUN["batch"], "micro_batch_size": row.micro_batch_size,
                      "gradient_accumulation_steps": row.gradient_accumulation_steps},
        })  # fmt: skip
        assert settings.global_batch_size == settings_from(RUN).global_batch_size == 8
        told = forerun.forecast(settings, gpu="h100-80gb")
        assert row.fits
        assert row.device_bytes == pytest.approx(told.memory.device_bytes.conservative, rel=1e-6)
        assert row.device_bytes <= 80 * GIB
        assert row.step_seconds == pytest.approx(told.step.seconds.expected, rel=1e-6)
        assert row.run_seconds == pytest.approx(told.run.seconds.expected, rel=1e-6)
    assert document.gpus == 4
    assert chosen(document).parallel.world_size == 4


@pytest.mark.medium
def test_every_layout_is_taken_or_says_why_not():
    document = planned(80 * GIB)
    for row in document.rows:
        words = {layout.description for layout in layouts_of(settings_from(RUN), row.gpus)}
        lost = [one.layout for one in document.lost if one.gpus == row.gpus]
        assert sorted([row.layout, *lost]) == sorted(words)
    assert all(any(letter.isdigit() for letter in one.text) for one in document.lost)
    assert document.layouts == len(document.lost) + len(document.rows)


@pytest.mark.medium
def test_the_layout_taken_is_the_fastest_of_all_forecast_in_full():
    """Every layout of two GPUs with every micro-batch and recomputation."""
    row = planned(80 * GIB).rows[0]
    best = float("inf")
    for parallel in (
        {"data": 2},
        {"shard": 2},
        {"kind": "none", "world_size": 2, "tensor": 2, "sequence_parallel": True},
    ):
        ranks = 1 if "tensor" in parallel else 2
        for size in (1, 2, 4, 8):
            if size * ranks > 8:
                continue
            batch = {**RUN["batch"], "micro_batch_size": size, "gradient_accumulation_steps": 8 // ranks // size}
            told = forerun.forecast(RUN | {"parallel": parallel, "batch": batch}, gpu="h100-80gb")
            best = min(best, told.step.seconds.expected)
    assert row.step_seconds is not None
    assert row.step_seconds <= 1.01 * best  # the search stops where a larger micro-batch gains less than 1 %


@pytest.mark.medium
def test_a_small_card_is_kept_to():
    roomy = planned(80 * GIB).rows[0]
    assert roomy.device_bytes is not None
    small = 0.8 * roomy.device_bytes
    document = planned(small)
    for row in document.rows:
        if row.fits:
            assert row.device_bytes is not None
            assert row.device_bytes <= small
    assert document.rows[0].layout != roomy.layout or document.rows[0].step_seconds >= roomy.step_seconds


@pytest.mark.medium
def test_limits_choose_the_number_of_gpus():
    free = planned(80 * GIB)
    slow, fast = free.rows
    assert slow.run_seconds is not None
    assert fast.run_seconds is not None
    assert slow.cost is not None
    assert fast.cost is not None
    relaxed = planned(80 * GIB, deadline_seconds=2 * slow.run_seconds)
    cheapest = min(free.rows, key=lambda row: row.cost or 0.0)
    assert relaxed.gpus == cheapest.gpus
    assert relaxed.plan.meets_limits
    hasty = planned(80 * GIB, deadline_seconds=(slow.run_seconds + fast.run_seconds) / 2)
    assert hasty.gpus == 4
    assert [row.keeps_limits for row in hasty.rows] == [False, True]
    poor = planned(80 * GIB, budget=(slow.cost + fast.cost) / 2)
    assert poor.gpus == cheapest.gpus
    never = planned(80 * GIB, deadline_seconds=1.0)
    assert not never.plan.meets_limits
    assert never.gpus == 4


@pytest.mark.medium
def test_nothing_fits_is_a_plan_too():
    document = planned(0.2 * GIB)
    assert document.gpus is None
    assert document.plan.settings is None
    assert not document.plan.fits
    assert {one.cause for one in document.lost} <= {"memory", "heads"}
    assert all("blocks cannot be dealt to" in one.text for one in document.lost if one.cause == "heads")  # of pipelines
    assert document.pruned["memory"] + document.pruned.get("heads", 0) == document.layouts
    assert document.plan.traces == 0
    assert "nothing fits" in _printed(document).lower()


@pytest.mark.medium
def test_the_view_names_the_numbers_and_the_reasons():
    text = _printed(planned(80 * GIB))
    for words in ("Plan of small on 4 x h100-80gb", "Other layouts of 4 GPUs", "shallow steps traced", "▶"):
        assert words in text
    assert "…" not in text  # in 80 columns


def _printed(document: ClusterPlan) -> str:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(cluster_plan_view(document))
    return console.export_text()


def test_arithmetic_alone_says_why_a_layout_cannot_be():
    size = ModelSize(10**9, 10**9, {"attention heads": 6})
    settings = settings_from(RUN | {"cluster": {"gpus_per_node": 4, "network": "auto"}})
    question = ClusterQuestion(settings, card(8 * GIB), RequestMaker(None), (4, 12, 16), size)
    layouts, lost = possible_layouts(question)
    why = {(one.gpus, one.layout): one for one in lost}
    assert why[4, "data 4"].cause == "memory"
    assert "alone need 14.9 GiB of 8.00 GiB" in why[4, "data 4"].text
    assert why[16, "shard 16"].cause == "batch"
    assert "8 rows for 16 ranks" in why[16, "shard 16"].text
    assert "cannot be dealt evenly to 12" in why[12, "shard 12"].text or why[12, "shard 12"].cause == "batch"
    assert why[4, "tensor 4 (sequence)"].cause == "heads"
    assert {layout.description for layout in layouts} >= {"shard 4", "shard 2 × tensor 2 (sequence)"}


def test_a_network_that_nobody_knows_is_told_before_anything_is_traced(monkeypatch):
    monkeypatch.setattr("forerun.forecasting.step_model.step_trace", lambda *_, **__: pytest.fail("traced"))
    content = {"name": "n", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 64},
               "parallel": {"shard": 16}, "cluster": {"network": "100gbe"}}  # fmt: skip
    with pytest.raises(UnknownNetwork, match="No network named '100gbe'"):
        forerun.forecast(content, gpu="h100-80gb")
