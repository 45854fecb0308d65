"""Which words of `preference` go together, and whose hashes they change."""

import pytest

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from

BASE = {"name": "p", "workload": "preference", "model": {"name": "tiny-llama"}, "data": {"examples": 8}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preference": {"beta": 0}}, "preference.beta"),
        ({"preference": {"label_smoothing": 0.5}}, "preference.label_smoothing"),
        ({"preference": {"loss": "simpo"}}, "preference.loss"),
        ({"preference": {"beta": 0.2}, "workload": "causal-lm"}, "preference: is for workload preference; found it with"),
        ({"preference": {"loss": "ipo", "label_smoothing": 0.1}}, "label_smoothing: belongs to sigmoid and robust; found"),
        ({"preference": {"loss": "kto", "label_smoothing": 0.1}}, "label_smoothing: belongs to sigmoid and robust; found"),
        ({"preference": {"desirable_weight": 2}}, "desirable_weight, undesirable_weight: belong to kto; found 2 and 1"),
        ({"preference": {"loss": "kto", "undesirable_weight": 0}}, "preference.undesirable_weight"),
        ({"preference": {"loss": "robust"}}, "preference.loss: robust without label_smoothing is sigmoid"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(changes, message):
    with pytest.raises(InvalidSettings, match=message):
        settings_from({**BASE, **changes})


def test_another_loss_is_another_run_and_the_usual_one_is_none():
    usual, other = settings_from(BASE), settings_from({**BASE, "preference": {"beta": 0.3}})
    said = settings_from({**BASE, "preference": {"beta": 0.1, "loss": "sigmoid"}})
    assert said.hash == usual.hash != other.hash
    assert said.resumable_hash == usual.resumable_hash != other.resumable_hash


def test_weights_that_say_nothing_leave_hashes_as_they_were():
    usual = settings_from({**BASE, "preference": {"beta": 0.3}})
    assert usual.hash == "74360558434d3e47"  # as of 2026-11-30, before there were weights
    heavy = settings_from({**BASE, "preference": {"loss": "kto", "desirable_weight": 2.0}})
    light = settings_from({**BASE, "preference": {"loss": "kto"}})
    assert heavy.hash != light.hash
    assert heavy.resumable_hash != light.resumable_hash
