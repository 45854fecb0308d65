"""Times of LLaMA-7B on an A100 (6.6e9 matrix parameters, 312 TFLOP/s), by hand, and beside made-up forecasts."""

from types import SimpleNamespace

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings
from forerun.records import Range

FULL = {
    "gpu": "a100-40gb",
    "settings": {
        "model": {"name": "llama-7b"}, "precision": "bf16-mixed", "schedule": {"epochs": 2},
        "batch": {"micro_batch_size": 10, "gradient_accumulation_steps": 10, "sequence_length": 1000},
        "data": {"examples": 1000},
    },
}  # fmt: skip
ADAPTER = {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]}


def adapted(**more):
    return {**FULL, "settings": {**FULL["settings"], "adapter": ADAPTER, **more}}


@pytest.mark.parametrize(
    ("time", "verdict"),
    [
        ("10 s", "impossible"),
        ("14 s", "wrong"),
        ("18 s", "unsupported"),
        ("40 s", "consistent"),
        ("200 s", "unsupported"),
    ],
)
def test_a_full_update_of_100_000_tokens_takes_13_s_at_peak(time, verdict):
    """6 x 6.6e9 x 1e5 / 312e12 = 12.7 s, and 2.0 % for attention."""
    finding = check_one({"kind": "speed", "time": time}, FULL)
    assert finding.verdict == verdict, finding


def test_adapters_and_int8_need_less_and_checkpointing_more():
    """8.5 s with frozen weights; two thirds of that where forward passes run at the peak of int8; half as much again."""
    for configuration, least in (
        (adapted(), 8.6), (adapted(quantization="int8"), 6.45), (adapted(activation_checkpointing="blocks"), 12.9),
    ):  # fmt: skip
        finding = check_one({"kind": "speed", "time": "1 s"}, configuration)
        assert float(finding.right.split()[2]) == pytest.approx(least, rel=0.02)


def test_what_was_measured_may_be_rare():
    assert check_one({"kind": "speed", "time": "18 s", "evidence": "run 1"}, FULL).verdict == "consistent"
    assert check_one({"kind": "speed", "time": "10 s", "evidence": "run 1"}, FULL).verdict == "impossible"


def test_several_devices_share_the_work():
    several = {**FULL["settings"], "parallel": {"kind": "ddp", "world_size": 2}}
    finding = check_one({"kind": "speed", "time": "26 s"}, {**FULL, "settings": several})
    alone = check_one({"kind": "speed", "time": "26 s"}, FULL)
    assert finding.right == alone.right, "twice the samples on twice the devices"


def test_throughput_is_a_time_too():
    assert check_one({"kind": "speed", "samples_per_second": 10}, FULL).verdict == "impossible"
    assert check_one({"kind": "speed", "samples_per_second": 3}, FULL).verdict == "consistent"


def test_busy_is_not_efficient():
    wrong = {"kind": "utilisation", "claimed": "95%", "time": "200 s", "per": "update"}
    assert check_one(wrong, FULL).verdict == "wrong"
    assert check_one({**wrong, "read_with": "nvidia-smi"}, FULL).verdict == "unsupported"
    assert check_one({**wrong, "claimed": "50%", "time": "30 s"}, FULL).verdict == "consistent"


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"differs": "lora-rank", "values": [8, 64], "times": ["50 min", "51 min"]}, "consistent"),
        ({"differs": "lora-rank", "values": [8, 64], "times": ["50 min", "90 min"]}, "wrong"),
        ({"differs": "tokens", "values": [500, 1000], "times": ["1 h", "2 h"]}, "consistent"),
        ({"differs": "tokens", "values": [500, 1000], "change": ["20%"]}, "wrong"),
        ({"differs": "frozen-encoder", "values": [False, True], "times": ["9 min", "3 min"]}, "consistent"),
        ({"differs": "frozen-encoder", "values": [False, True], "times": ["9 min", "10 min"]}, "wrong"),
    ],
)
def test_time_follows_work(check, verdict):
    assert check_one({"kind": "work-time", **check}, adapted()).verdict == verdict


def test_two_devices_are_at_most_twice_as_fast():
    check = {"kind": "data-parallel", "one": "100 min", "gpus": 2}
    assert check_one({**check, "several": "55 min"}).verdict == "consistent"
    assert check_one({**check, "several": "45 min"}).verdict == "impossible"


def forecaster(settings, gpu):
    """A step of 2 s with 0.5 s of forward pass, 20 steps, 60 s of evaluation."""
    band = Range(optimistic=1.6, expected=2.0, conservative=2.6)
    step = SimpleNamespace(seconds=band, phases=SimpleNamespace(forward_seconds=0.5))
    whole = Range(optimistic=80.0, expected=100.0, conservative=130.0)
    phases = SimpleNamespace(training_seconds=40.0, evaluation_seconds=60.0)
    return SimpleNamespace(
        step=step, run=SimpleNamespace(seconds=whole, phases=phases, steps_per_epoch=10, total_steps=20)
    )


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"quantity": "step", "claimed": "2.2 s"}, "consistent"),
        ({"quantity": "step", "claimed": "3.2 s"}, "unsupported"),
        ({"quantity": "step", "claimed": "6 s"}, "wrong"),
        ({"quantity": "forward", "per": "epoch", "claimed": "5 s"}, "consistent"),
        ({"quantity": "evaluation", "per": "epoch", "claimed": "30 s"}, "consistent"),
        ({"quantity": "run", "per": "run", "claimed": "20 s"}, "wrong"),
    ],
)
def test_beside_the_forecast(check, verdict):
    assert check_one({"kind": "forecast", **check}, FULL, forecaster).verdict == verdict


def test_generating_takes_time():
    check = {
        "kind": "generation", "samples": 100, "new_tokens": 100, "tokens_per_second": 10, "source": "x",
        "training": "10 min",
    }  # fmt: skip
    assert "longer than the training" in check_one(check).said
    assert check_one({**check, "allowed": "17 min"}).verdict == "consistent"
    assert check_one({**check, "allowed": "1 min"}).verdict == "wrong"


def test_a_limit_counts_as_the_number_that_it_names():
    assert check_one({"kind": "speed", "time": "< 5 s"}, FULL).verdict == "impossible"
    assert check_one({"kind": "run-time", "step": "< 40 s", "claimed": "800 s"}, FULL).right == "13.3 min"


def test_nothing_takes_no_time():
    with pytest.raises(InvalidSettings, match="Claim 1, check speed: a quantity that is divided by is 0"):
        check_one({"kind": "speed", "time": "0 s"}, FULL)
