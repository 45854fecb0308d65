import numpy as np
import pytest

from forerun.evaluate.proportions import draws_of_rows, paired_difference, samples_needed, tasks_needed, wilson


@pytest.mark.parametrize(("hits", "low", "high"), [(46, 0.812, 0.968), (44, 0.762, 0.944)])
def test_wilson_of_fifty(hits, low, high):
    interval = wilson(hits, 50)
    assert (round(interval.low, 3), round(interval.high, 3)) == (low, high)


def test_wilson_at_the_ends():
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == pytest.approx(1)
    with pytest.raises(ValueError, match="trial"):
        wilson(1, 0)


def test_samples_that_tell_92_from_88():
    """Fleiss' formula without correction: 882 in each group; the origin judged by 50."""
    assert samples_needed(0.92, 0.88) == samples_needed(0.88, 0.92) == 882
    assert samples_needed(0.5, 0.5) is None


def test_paired_difference_uses_the_pairs():
    random = np.random.default_rng(0)
    first = (random.random(300) < 0.6).astype(float)
    second = first.copy()
    second[:30] = 1 - second[:30]
    difference = paired_difference(first.tolist(), second.tolist())
    assert difference.value == pytest.approx(first.mean() - second.mean())
    assert difference.low <= difference.value <= difference.high
    shuffled = paired_difference(first.tolist(), random.permutation(second).tolist())
    assert shuffled.high - shuffled.low > 1.5 * (difference.high - difference.low)
    assert paired_difference([1.0, 0.0], [1.0, 0.0]).low == 0.0
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference([1.0], [])


def test_tasks_needed_have_the_power_they_promise():
    random = np.random.default_rng(1)

    def draw(size):
        second = random.random(size) < 0.5
        return np.where(random.random(size) < 0.12, random.random(size) < 0.9, second).astype(float), second.astype(
            float
        )

    tasks = tasks_needed(*draw(200_000))
    hits = 0
    for _ in range(300):
        gaps = np.subtract(*draw(tasks))
        hits += abs(gaps.mean()) > 1.96 * gaps.std() / tasks**0.5
    assert 0.73 < hits / 300 < 0.88
    assert tasks_needed([1.0, 0.0], [1.0, 0.0]) is None


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_draws_in_blocks_are_those_of_one_call(rows, monkeypatch):
    monkeypatch.setattr("forerun.evaluate.proportions.DRAWN_AT_ONCE", 3000)
    blocks = list(draws_of_rows(rows, 50, seed=4))
    assert max(block.size for block in blocks) <= 3000
    assert np.array_equal(np.concatenate(blocks), np.random.default_rng(4).integers(0, rows, (50, rows)))
