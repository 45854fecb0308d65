"""How much slower others' load may make a run: by what was measured with busy loops beside it."""

import pytest

from forerun.verify.contention import contention, slowdown
from forerun.verify.test_compare import forecast, measurement


def beside(share=None, waiting=None, stolen=None):
    load = {"other_processes_share": share, "waiting_share": waiting, "stolen_share": stolen}
    return measurement().model_copy(update={"evidence": measurement().evidence.model_copy(update=load)})


@pytest.mark.parametrize(("waiting", "measured"), [(0.0, 1.0), (0.37, 1.74), (0.58, 2.65), (0.70, 3.68), (0.87, 9.11)])
def test_one_thread_takes_as_much_longer_as_it_waits(waiting, measured):
    assert slowdown(forecast(), beside(0.9, waiting)) == pytest.approx(measured, rel=0.16)


def test_waits_are_counted_before_shares_and_never_explain_everything():
    assert slowdown(forecast(), beside()) == 1
    assert slowdown(forecast(), beside(share=0.5)) == 2
    assert slowdown(forecast(), beside(share=0.5, waiting=0.0)) == 1  # the other core was free
    assert slowdown(forecast(), beside(share=0.5, waiting=0.25, stolen=0.25)) == 2
    assert slowdown(forecast(), beside(share=1.0, waiting=63.0)) == pytest.approx(50)


def test_a_gpu_does_not_wait_for_the_processors_of_others():
    there = forecast().model_copy(update={"gpu": "t4"})
    assert contention(there, beside(0.9, 0.9)) == 0
    assert slowdown(there, beside(0.9, 0.9)) == 1
