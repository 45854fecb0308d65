import pytest

from forerun.settings.schema import ScheduleSettings
from forerun.train.schedule import Schedule

CASES = {
    "later than the first": (2, [[1, 2, 3, 9, 9]], {3}),
    "the second, which is cold but has the optimizer's state": (0.8, [[1, 9, 3, 4, 5]], {1}),
    "as heavy as the first": (2, [[9, 2, 3, 9, 1]], {3}),
    "the first, so that of the second epoch": (2, [[9, 2, 3, 4, 1], [1, 9, 9, 1, 1]], {6}),
    "the first in both": (2, [[9, 2, 3, 4, 1], [9, 9, 1, 1, 1]], {5}),
    "the first, and no second epoch": (1, [[9, 2, 3, 4, 1]], {0, 3}),
    "the first, and only a part of the second epoch": (1.2, [[9, 2, 3, 4, 1], [3, 9, 9, 9, 9]], {0, 3}),
    "two steps": (1, [[9, 2]], {0, 1}),
    "one step": (1, [[9]], {0}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_heaviest_step_is_measured_and_the_first_where_it_weighs_more(case):
    epochs, weights, steps = CASES[case]
    schedule = Schedule(ScheduleSettings(epochs=epochs), len(weights[0]))
    assert schedule.heaviest_steps(weights.__getitem__) == steps


@pytest.mark.parametrize(
    ("frozen", "weights", "steps"),
    [(0.4, [[9, 9, 1, 3, 5], [1, 7, 1, 1, 1]], {6}), (1, [[9, 9, 9, 9, 9], [2, 4, 3, 3, 1]], {6}), (2, [[1, 9]], {1})],
    ids=["a part of an epoch", "an epoch", "the whole run"],
)
def test_steps_of_a_frozen_encoder_hold_less_and_are_not_measured(frozen, weights, steps):
    schedule = Schedule(ScheduleSettings(epochs=2 if frozen < 2 else 1, frozen_encoder_epochs=frozen), len(weights[0]))
    assert schedule.heaviest_steps(weights.__getitem__) == steps
