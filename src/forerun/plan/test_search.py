"""Plans against every candidate forecast in full, on cards so small that fitting matters."""

from functools import cache

import pytest

from forerun.api import request_of
from forerun.hardware.catalogue import Device, device
from forerun.plan.candidates import StepClass, Workbench
from forerun.plan.choose import PlanLimits, make_plan
from forerun.plan.exhaustive import best_seconds, forecast_all, whole_seconds
from forerun.plan.remedies import leanest, remedies
from forerun.plan.space import changed, with_batch
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import MIB

WITHIN = 1.03
"""The plan's training time over the best of all candidates; the search leaves out what promises less than 2 %."""
WIDE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 1,
        "max_position_embeddings": 512}  # fmt: skip
"""One block as wide as a real model's: quick to trace, and activations that fill a card."""
LLAMA = {**WIDE, "num_key_value_heads": 12, "vocab_size": 32000}
TARGETS = {
    "bert": {"workload": "sequence-classification", "model": {"name": "tiny-bert", "config": WIDE}},
    "llama": {"workload": "causal-lm", "model": {"name": "tiny-llama", "config": LLAMA}},
    "gpt2": {"workload": "causal-lm", "model": {"name": "tiny-gpt2", "config": {"n_layer": 1, "n_positions": 512}}},
}


def target(name: str, **changes) -> Settings:
    batch = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "sequence_length": 512}
    content = {"name": name, **TARGETS[name], "batch": batch, "data": {"examples": 6400}, "precision": "fp16-mixed"}
    return settings_from({**content, **changes})


def ask(settings, gpu):
    return request_of(settings, gpu, None)


def card(settings: Settings, size: int) -> Device:
    """A T4 on which micro-batches of `size` fit with nothing recomputed, and twice as much does not."""
    roomy, bench = device("t4"), Workbench(ask, 60.0)
    step_class = StepClass(settings, roomy, bench, [1, 2])
    batch = settings.global_batch_size
    least, more = (step_class.at(n, batch // n).device_bytes for n in (size, 2 * size))
    return roomy.model_copy(update={"memory_bytes": int(0.8 * least + 0.2 * more)})


@cache
def planned(name: str, size: int):
    settings = target(name)
    gpu = card(settings, size)
    return settings, gpu, make_plan(settings, [gpu], ask)


@pytest.mark.medium
@pytest.mark.parametrize(("name", "size"), [("bert", 2), pytest.param("llama", 1, marks=pytest.mark.slow)])
def test_it_finds_what_trying_everything_finds(name, size):
    settings, gpu, plan = planned(name, size)
    best = best_seconds(forecast_all(settings, gpu, ask, compiled=False))
    assert plan.forecast is not None
    assert best is not None
    assert whole_seconds(plan.forecast) <= WITHIN * best


def test_what_it_chooses_fits_and_keeps_the_global_batch():
    settings, gpu, plan = planned("bert", 2)
    selection = settings_from(plan.settings)
    assert plan.fits
    assert plan.forecast.fits
    assert plan.forecast.memory.device_bytes.conservative <= gpu.memory_bytes
    assert plan.forecast.settings_hash == selection.hash
    assert selection.global_batch_size == settings.global_batch_size == 4
    assert selection.optimizer == settings.optimizer
    assert all(point.device_bytes <= gpu.memory_bytes for point in plan.front)
    assert sum(point.is_chosen for point in plan.front) == 1


def test_reasons_name_numbers():
    plan = planned("bert", 2)[2]
    lines = [reason.said for reason in (*plan.rejected, *plan.reasons)]
    assert lines
    assert all(any(letter.isdigit() for letter in line) for line in lines)


@pytest.mark.medium
def test_what_is_too_large_says_what_it_needs():
    _, gpu, plan = planned("bert", 1)  # two rows fit recomputed, if only every second product is kept
    lines = [reason.said for reason in plan.rejected]
    too_large = [line for line in lines if "micro_batch_size" in line and "needs" in line and gpu.name in line]
    assert too_large
    assert all("MiB" in line for line in too_large)


@pytest.mark.medium
def test_nothing_fits_and_what_would_help_is_said():
    settings = target("gpt2")
    gpu = device("t4").model_copy(update={"memory_bytes": 150 * MIB})
    plan = make_plan(settings, [gpu], ask)
    assert not plan.fits
    assert not plan.meets_limits
    assert plan.settings is None
    assert plan.forecast is None
    assert any("needs" in reason.said and "150 MiB" in reason.said for reason in plan.rejected)
    assert any(remedy.change.startswith("--gpu") and remedy.device_bytes for remedy in plan.remedies)


@pytest.mark.medium
def test_host_memory_is_offered_where_shards_do_not_fit():
    settings = target("llama", precision="bf16-mixed", parallel={"shard": 2})
    moved = changed(settings, {"parallel.offload": "parameters"})
    most, least = (leanest(each, device("a10g"), Workbench(ask, 60.0)).device_bytes for each in (settings, moved))
    tight = device("a10g").model_copy(update={"memory_bytes": (most + least) // 2})
    first, *_ = remedies(settings, [tight], [], [], None, None, Workbench(ask, 60.0), has_method=False)
    assert (first.change, first.device_bytes) == ("parallel.offload=parameters", least)
    assert "not forerun" in first.said


@pytest.mark.medium
def test_a_deadline_takes_the_cheapest_that_keeps_it_and_a_budget_the_fastest():
    settings = target("gpt2", data={"examples": 64_000_000})
    gpus = [device("t4"), device("a100-40gb")]
    free = make_plan(settings, gpus, ask, seconds=0)
    assert free.gpu == "a100-40gb"
    slow = next(point for point in free.front if point.gpu == "t4")
    late = make_plan(settings, gpus, ask, limits=PlanLimits(deadline_seconds=slow.run_seconds * 1.05), seconds=0)
    cheapest = min(free.front, key=lambda point: point.cost)
    assert late.gpu == cheapest.gpu
    missed = make_plan(settings, gpus[:1], ask, limits=PlanLimits(deadline_seconds=slow.run_seconds / 1e3), seconds=0)
    assert missed.fits
    assert not missed.meets_limits
    assert any("--deadline" in remedy.change for remedy in missed.remedies)
    dear = make_plan(settings, gpus[:1], ask, limits=PlanLimits(budget=1e-4), seconds=0)
    assert not dear.meets_limits
    assert any(remedy.change == "--budget" and remedy.cost > 1e-4 for remedy in dear.remedies)


def test_another_global_batch_only_where_it_is_allowed():
    settings = target("gpt2", optimizer={"learning_rate": 1e-4}, schedule={"warmup_steps": 40})
    plan = make_plan(settings, [device("t4")], ask, allow=["global-batch"], seconds=8)
    selection = settings_from(plan.settings)
    factor = selection.global_batch_size / settings.global_batch_size
    assert factor == 4
    assert selection.optimizer.learning_rate == pytest.approx(1e-4 * factor**0.5)
    assert selection.schedule.warmup_steps * selection.global_batch_size == 40 * settings.global_batch_size
    assert any("2205.10287" in reason.said for reason in plan.reasons)


@pytest.mark.slow
def test_the_method_changes_only_where_it_is_allowed_and_needed():
    settings = target("llama")
    state = StepClass(settings, device("t4"), Workbench(ask, 60.0), []).at(1, 4).state_bytes
    tight = device("t4").model_copy(update={"memory_bytes": state})
    refused = make_plan(settings, [tight], ask, seconds=0)
    assert not refused.fits
    assert any("--allow method" in remedy.said for remedy in refused.remedies)
    plan = make_plan(settings, [tight], ask, allow=["method"], seconds=0)
    assert plan.fits
    assert {c.path for c in plan.changes} & {"optimizer.name", "adapter.kind"}
    assert any(reason.about == "method" for reason in plan.reasons)


def test_an_estimate_is_the_forecast_of_its_candidate():
    from forerun.forecasting.forecast import make_forecast

    settings, gpu = target("llama"), device("t4")
    step_class = StepClass(settings, gpu, Workbench(ask, 60.0), [1, 2, 4, 5, 8])
    for size in (1, 8, 16):
        estimate = step_class.at(size, 16 // size)
        forecast = make_forecast(ask(with_batch(settings, size, 16 // size), gpu))
        assert estimate.step_seconds == pytest.approx(forecast.step.seconds.expected, rel=1e-9)
        assert estimate.training_seconds == pytest.approx(forecast.run.phases.training_seconds, rel=1e-9)
        assert estimate.device_bytes == forecast.memory.device_bytes.conservative


@pytest.mark.medium
@pytest.mark.parametrize(("gpu", "attention"), [("a100-40gb", "flash_attention_2"), ("t4", "auto")])
def test_a_package_that_the_user_names_is_kept_where_the_card_has_it(gpu, attention):
    model = {"name": "tiny-llama", "attention": "flash_attention_2"}
    settings = settings_from({**target("llama").model_dump(), "model": model, "precision": "fp16-mixed"})
    plan = make_plan(settings, [device(gpu)], ask)
    assert settings_from(plan.settings).model.attention == attention
