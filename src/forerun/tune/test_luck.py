import numpy as np
import pytest

from forerun.tune.luck import best_of, best_so_far, expected_gain, importances, noise_band, pooled_noise


def test_the_band_is_that_of_simulated_best_trials():
    random = np.random.default_rng(0)
    best = random.normal(0.6, 0.02, (20_000, 25)).max(axis=1)
    point = best_of(25, 0.6, 0.02)
    assert np.quantile(best, [0.1, 0.5, 0.9]) == pytest.approx([point.low, point.middle, point.high], abs=0.001)


def test_equal_trials_stay_in_the_band_most_of_the_time_and_a_real_find_leaves_it():
    random = np.random.default_rng(1)
    above = 0
    for _ in range(300):
        scores = list(random.normal(0.6, 0.02, 20))
        above += max(scores) > noise_band(scores, 0.02)[-1].high
    assert 0.04 < above / 300 < 0.18
    scores = list(random.normal(0.6, 0.02, 19)) + [0.75]
    assert best_so_far(scores)[-1] > noise_band(scores, 0.02)[-1].high


def test_expected_gain_agrees_with_simulation():
    scores = list(np.random.default_rng(2).normal(0.6, 0.03, 30))
    mean, deviation, best = np.mean(scores), np.std(scores), max(scores)
    simulated = np.random.default_rng(3).normal(mean, deviation, (40_000, 12)).max(axis=1)
    assert expected_gain(scores, 12, 0.0) == pytest.approx(np.maximum(0, simulated - best).mean(), rel=0.05)
    assert expected_gain(scores, 12, deviation) == pytest.approx(0, abs=1e-12)
    assert expected_gain(scores, 3, 0.0) < expected_gain(scores, 30, 0.0)
    assert expected_gain(scores[:2], 10, 0.0) is None, "two scores have no spread: unknown, and not 0"
    assert expected_gain(scores, 0, 0.0) == 0


def test_noise_of_starting_points_is_pooled_within_settings():
    assert pooled_noise([[0.1, 0.3], [0.8, 1.0]]) == pytest.approx(0.2 / np.sqrt(2))
    assert pooled_noise([[0.1], [0.9]]) is None


def test_what_matters_stands_out_from_what_does_not():
    random = np.random.default_rng(4)
    points = [
        {"rate": float(random.random()), "dead": float(random.random()), "kind": str(random.choice(["a", "b"]))}
        for _ in range(50)
    ]
    for point in points[::2]:
        del point["dead"]
    scores = [p["rate"] + 0.3 * (p["kind"] == "a") + 0.02 * float(random.normal()) for p in points]
    by_name = {i.name: i for i in importances(points, scores, ["rate", "dead", "kind"])}
    assert by_name["rate"].is_above_chance
    assert not by_name["dead"].is_above_chance
    assert by_name["rate"].low < by_name["rate"].value < by_name["rate"].high
    assert importances(points[:7], scores[:7], ["rate"]) == []
