import pytest

from forerun.settings.schema import ScheduleSettings
from forerun.train.schedule import Schedule

CASES = {
    "after the cold steps": (2, [[1, 2, 3, 9, 9]], 3),
    "as heavy as a cold one": (2, [[9, 2, 3, 9, 1]], 3),
    "cold, so that of the second epoch": (2, [[9, 2, 3, 4, 1], [1, 9, 9, 1, 1]], 6),
    "cold in both": (2, [[9, 2, 3, 4, 1], [9, 9, 1, 1, 1]], 5),
    "cold, and no second epoch": (1, [[9, 2, 3, 4, 1]], 3),
    "cold, and only a part of the second epoch": (1.2, [[9, 2, 3, 4, 1], [3, 9, 9, 9, 9]], 3),
    "nothing but cold steps": (1, [[9, 2]], 1),
    "one step": (1, [[9]], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_heaviest_step_is_a_warm_one(case):
    epochs, weights, step = CASES[case]
    schedule = Schedule(ScheduleSettings(epochs=epochs), len(weights[0]))
    assert schedule.heaviest_step(weights.__getitem__, 2) == step
