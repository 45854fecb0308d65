"""Lengths of samples keep their mean, whatever becomes of the longer ones."""

import numpy as np
import pytest

from forerun.data.sample_lengths import SampleLengths

COUNT = 4000


def drawn(samples: SampleLengths) -> np.ndarray:
    return np.array([samples.quantile((k + 0.5) / COUNT) for k in range(COUNT)])


@pytest.mark.parametrize(("mean", "limit"), [(3, 4096), (412.7, 512), (1346.5, 2048), (256.5, 512), (511.5, 512)])
def test_lengths_up_to_a_limit_have_their_mean(mean, limit):
    samples = SampleLengths(mean, limit, drops=True)
    lengths = drawn(samples)
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert 1 <= lengths.min() <= lengths.max() <= limit
    assert samples.expected_longest(1) == pytest.approx(mean, rel=0.02)


def test_the_density_rises_where_the_mean_is_beyond_half_the_limit():
    rising, falling = (SampleLengths(mean, 1000, drops=True) for mean in (700, 300))
    assert rising.share_up_to(500) < 0.25 < 0.75 < falling.share_up_to(500)
    assert SampleLengths(500.5, 1000, drops=True).share_up_to(250) == pytest.approx(0.25)


@pytest.mark.parametrize("drops", [False, True])
def test_a_share_and_its_length_belong_together(drops):
    samples = SampleLengths(120.0, 512, drops=drops)
    for share in (0.1, 0.5, 0.9):
        length = samples.quantile(share)
        assert samples.share_up_to(length - 1) < share <= samples.share_up_to(length) + 1e-9


def test_the_longest_of_many_is_that_of_drawn_ones():
    samples = SampleLengths(120.0, 512, drops=True)
    random = np.random.default_rng(0)
    lengths = drawn(samples)
    longest = random.choice(lengths, (2000, 8)).max(1).mean()
    assert samples.expected_longest(8) == pytest.approx(longest, rel=0.02)


def test_cut_samples_pile_up_at_the_limit_and_a_mean_of_one_is_one():
    assert (drawn(SampleLengths(400.0, 512)) == 512).mean() == pytest.approx(np.exp(-512 / 400), abs=0.01)
    assert SampleLengths(1.0, 512).quantile(0.9) == SampleLengths(1.0, 512).expected_longest(8) == 1
