"""A forecast with failures: what it says beside the one without, which nothing changes."""

import pytest

import forerun
from forerun.errors import InvalidSettings
from forerun.records import Forecast, RunReliability
from forerun.settings.load import settings_from

RUN = {
    "name": "small", "workload": "causal-lm", "precision": "bf16-mixed",
    "model": {"name": "tiny-gpt2", "config": {"n_layer": 1}}, "batch": {"micro_batch_size": 2, "sequence_length": 32},
    "data": {"examples": 64}, "schedule": {"max_steps": 2_000_000, "epochs": 1_000_000},
    "parallel": {"data": 8}, "checkpoints": {"every_steps": 100_000},
}  # fmt: skip


def forecast(gpu: str = "h100-80gb", **reliability) -> Forecast:
    return forerun.forecast(RUN | ({"reliability": reliability} if reliability else {}), gpu=gpu)


@pytest.fixture(scope="module")
def plain() -> Forecast:
    return forecast()


def test_a_run_that_names_no_failures_says_and_hashes_what_it_did(plain):
    assert '"reliability"' not in plain.model_dump_json()
    named = settings_from(RUN | {"reliability": {}})
    assert named.hash == settings_from(RUN).hash == plain.settings_hash
    failing = settings_from(RUN | {"reliability": {"failures": 1000.0}})
    assert failing.hash != named.hash
    assert failing.resumable_hash == named.resumable_hash


def test_failures_lengthen_the_run_and_leave_the_contract_alone(plain):
    failing = forecast(failures=4.0, restart_seconds=120, checkpoint_wait_seconds=5)
    run = failing.run.reliability
    assert run is not None
    assert failing.run.seconds == plain.run.seconds
    assert failing.run.cost == plain.run.cost
    assert run.seconds_between_interruptions == 4 * 3600 / 8
    assert run.interruptions == pytest.approx(run.seconds / 1800)
    assert run.best_seconds <= run.seconds
    assert 0 < run.goodput <= run.best_goodput < 1
    assert run.cost == run.on_demand_cost == pytest.approx(run.seconds / 3600 * 8 * _price())
    assert run.energy_joules == 700 * 8 * run.seconds
    parts = run.goodput * run.seconds + run.repeated_seconds + run.interruptions * 120
    assert parts == pytest.approx(run.seconds, rel=0.05)  # the rest: start-up and standing still
    again = Forecast.model_validate_json(failing.model_dump_json(by_alias=True))
    assert again.run == failing.run


def _price() -> float:
    from forerun.hardware.catalogue import device

    return device("h100-80gb").price_per_hour or 0.0


def test_checkpoints_as_often_as_is_best_are_named_and_keep_their_word():
    rare = forecast(failures=2.0, restart_seconds=60, checkpoint_wait_seconds=5)
    run = rare.run.reliability
    assert run is not None
    assert any(f"--set checkpoints.every_steps={run.best_every_steps}" in text for text in rare.warnings)
    settings = RUN | {
        "reliability": {"failures": 2.0, "restart_seconds": 60, "checkpoint_wait_seconds": 5},
        "checkpoints": {"every_steps": run.best_every_steps},
    }
    best = forerun.forecast(settings, gpu="h100-80gb").run.reliability
    assert best is not None
    assert best.seconds == pytest.approx(run.best_seconds)
    assert best.seconds == best.best_seconds


def test_machines_that_are_taken_away_cost_less_until_they_are_taken_too_often():
    def spot(rate: float) -> RunReliability:
        run = forecast(spot={"interruptions_per_hour": rate, "discount": 0.6, "wait_seconds": 600}).run.reliability
        assert run is not None
        return run

    seldom, often = spot(0.05), spot(20)
    assert (often.seconds or 0) > 2 * (seldom.seconds or 0) > 0
    assert (seldom.cost or 0) == pytest.approx(0.4 * (seldom.on_demand_cost or 0), rel=0.1)
    assert (often.cost or 0) > (seldom.on_demand_cost or 0)
    assert "interruptions of a machine an hour, as set" in often.source


def test_what_is_not_known_is_said():
    told = forecast("l40s", failures="llama-3-405b")
    assert told.run.reliability is not None
    assert told.run.reliability.energy_joules is None
    assert "llama-3-405b" in told.run.reliability.source
    assert any("Energy is unknown" in text for text in told.warnings)
    assert any("Each further minute" in text for text in told.warnings)
    with pytest.raises(InvalidSettings, match="published cluster"):
        forecast(failures="llama")


def test_a_run_without_end_is_said_to_have_none():
    hopeless = forecast(failures=0.001, restart_seconds=600)
    assert hopeless.run.reliability is not None
    assert hopeless.run.reliability.seconds is None
    assert hopeless.run.reliability.goodput == 0
    assert any("hardly ever gets" in text for text in hopeless.warnings)
