"""Counts of a run of 1,000 samples in micro-batches of 8, 4 to an update, 3 epochs: 125 micro-steps, 32 updates, 96."""

import pytest

from forerun.audit.check import check_one
from forerun.errors import InvalidSettings

RUN = {
    "gpu": "t4",
    "settings": {
        "model": {"name": "gpt2"}, "data": {"examples": 1000}, "schedule": {"epochs": 3},
        "batch": {"micro_batch_size": 8, "gradient_accumulation_steps": 4, "sequence_length": 128},
    },
}  # fmt: skip
UNEVEN = {**RUN, "settings": {**RUN["settings"], "data": {"examples": 1001}}}


@pytest.mark.parametrize(
    ("check", "configuration", "verdict", "right"),
    [
        ({"kind": "global-batch", "claimed": 32}, RUN, "consistent", "32"),
        ({"kind": "global-batch", "claimed": 8}, RUN, "wrong", "32"),
        ({"kind": "steps", "claimed": 96}, RUN, "consistent", "96"),
        ({"kind": "steps", "claimed": 125, "counts": "micro-steps", "per": "epoch"}, RUN, "consistent", "125"),
        ({"kind": "steps", "claimed": 125, "counts": "micro-steps", "per": "epoch"}, UNEVEN, "wrong", "126"),
        ({"kind": "steps", "claimed": 125, "counts": "micro-steps", "per": "epoch"}, {**UNEVEN, "drop_last": True}, "consistent", "125"),
        ({"kind": "steps", "claimed": 320, "counts": "samples", "over": 10}, RUN, "consistent", "320"),
        ({"kind": "schedule-unit", "claimed": 400, "counted": "micro-steps", "source": "x"}, RUN, "wrong", "100 updates"),
        ({"kind": "schedule-unit", "claimed": 400, "counted": "updates", "source": "x"}, RUN, "consistent", "400 updates"),
        ({"kind": "warmup", "steps": 5, "share": "5%"}, RUN, "consistent", "5.2 %"),
        ({"kind": "warmup", "steps": 5, "share": "1%"}, RUN, "wrong", "5.2 %"),
        ({"kind": "warmup", "steps": 20}, RUN, "wrong", "20.8 %"),
        ({"kind": "saves", "every": 40, "claimed": 3}, RUN, "consistent", "3 checkpoints"),
        ({"kind": "saves", "every": 48, "claimed": 3}, RUN, "wrong", "2 checkpoints"),
        ({"kind": "run-time", "step": "10 s", "claimed": "16 min"}, RUN, "consistent", "16.0 min"),
        ({"kind": "run-time", "step": "10 s", "claimed": "8 min"}, RUN, "wrong", "16.0 min"),
        ({"kind": "data-volume", "unique_tokens": "1B", "source": "x"}, RUN, "consistent", "0.0 passes"),
        ({"kind": "data-volume", "unique_tokens": "50K", "source": "x"}, RUN, "wrong", "7.9 passes"),
        ({"kind": "data-volume", "unique_tokens": "128K", "source": "x", "from_random_weights": False}, RUN, "consistent", "3.1 passes"),
        ({"kind": "artefact", "claimed": "500 MB"}, RUN, "consistent", "at least 0.50 GB"),
        ({"kind": "artefact", "claimed": "443 B", "parameters": "67M", "bytes_per_parameter": 2}, None, "impossible", "0.13 GB"),
    ],
)  # fmt: skip
def test_counts(check, configuration, verdict, right):
    finding = check_one(check, configuration)
    assert finding.verdict == verdict
    assert right in finding.right


def scaling(**changes):
    settings = {"called": "linear", "used": "linear", "old": 1e-4, "new": 4e-4, "old_batch": 16, "new_batch": 64}
    return check_one({"kind": "learning-rate-scaling", **settings, **changes})


def test_learning_rates_follow_the_rule_that_is_named():
    assert scaling().verdict == "consistent"
    assert scaling(used="square-root", called="square-root", new=2e-4).verdict == "consistent"
    assert "square-root rule, not the linear" in scaling(used="square-root", new=2e-4).said
    assert scaling(new_batch=16).verdict == "wrong"


def test_what_a_check_needs_is_said():
    with pytest.raises(InvalidSettings, match="gives no settings, which this check needs. Add settings"):
        check_one({"kind": "steps", "claimed": 3})
    with pytest.raises(InvalidSettings, match="examples"):
        check_one({"kind": "steps", "claimed": 3}, {"settings": {"model": {"name": "gpt2"}}})
