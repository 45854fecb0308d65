import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity.grams import grams
from forerun.recipes.code_detector.similarity.winnowing import Winnowing, base_runs, fingerprints, mixed

values = st.lists(st.integers(0, 5), max_size=60)
sizes = st.builds(Winnowing, k=st.integers(1, 6), window=st.integers(1, 6))


def as_tokens(numbers):
    return np.asarray(numbers, dtype=np.uint64)


@given(values, values, values, values, sizes, st.data())
def test_a_shared_run_of_the_guarantee_is_always_found(before, after, other_before, other_after, size, data):
    shared = data.draw(st.lists(st.integers(0, 5), min_size=size.guarantee, max_size=size.guarantee + 5))
    one = fingerprints(as_tokens([*before, *shared, *after]), size)
    two = fingerprints(as_tokens([*other_before, *shared, *other_after]), size)
    assert set(one.numbers.tolist()) & set(two.numbers.tolist())


@given(values, values, sizes)
def test_no_run_shorter_than_k_is_ever_found(first, second, size):
    a, b = as_tokens(first), as_tokens(second)
    shared = set(fingerprints(a, size).numbers.tolist()) & set(fingerprints(b, size).numbers.tolist())
    runs_a = {tuple(first[i : i + size.k]) for i in range(len(first) - size.k + 1)}
    runs_b = {tuple(second[i : i + size.k]) for i in range(len(second) - size.k + 1)}
    assert not shared or runs_a & runs_b


@given(values, sizes)
def test_every_window_has_a_fingerprint_at_its_rightmost_least(token_values, size):
    numbers = mixed(grams(as_tokens(token_values), size.k)).tolist()
    places = fingerprints(as_tokens(token_values), size).places.tolist()
    expected = set()
    for start in range(max(0, len(numbers) - size.window) + 1 if numbers else 0):
        window = numbers[start : start + size.window]
        expected.add(start + len(window) - 1 - window[::-1].index(min(window)))
    assert places == sorted(expected)


def test_density_is_about_two_over_window_plus_one():
    random = np.random.default_rng(0).integers(0, 2**63, 20_000).astype(np.uint64)
    size = Winnowing(k=5, window=9)
    share = len(fingerprints(random, size).places) / (20_000 - 4)
    assert share == pytest.approx(2 / 10, rel=0.03)  # the paper's expected density; 3 % is six standard errors


def test_base_code_leaves_nothing():
    tokens = as_tokens(list(range(30)))
    size = Winnowing()
    assert len(fingerprints(tokens, size, base_runs(tokens, size)).numbers) == 0


def test_sizes_are_checked():
    with pytest.raises(InvalidSettings, match="window = 0"):
        Winnowing(window=0)
