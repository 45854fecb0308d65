import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.recipes.code_detector.similarity import tiling
from forerun.recipes.code_detector.similarity.tiling import Tile, tiles

texts = st.lists(st.integers(0, 3), max_size=30)


def as_tokens(values):
    return np.asarray(values, dtype=np.uint64)


def by_hand(first, second, minimum):
    """Greedy string tiling as Wise wrote it down: search, then mark the longest, again and again."""
    used_a, used_b, expected = [False] * len(first), [False] * len(second), []
    while True:
        longest, matches = minimum, []
        for i in range(len(first)):
            for j in range(len(second)):
                k = 0
                while (
                    i + k < len(first) and j + k < len(second) and first[i + k] == second[j + k]
                    and not used_a[i + k] and not used_b[j + k]
                ):  # fmt: skip
                    k += 1
                if k > longest:
                    longest, matches = k, [(i, j)]
                elif k == longest:
                    matches.append((i, j))
        if not matches:
            return sorted(expected)
        for i, j in matches:
            if not any(used_a[i : i + longest]) and not any(used_b[j : j + longest]):
                used_a[i : i + longest] = used_b[j : j + longest] = [True] * longest
                expected.append((i, j, longest))


@given(texts, texts, st.integers(1, 6))
@settings(deadline=None)
def test_tiles_are_those_of_the_published_algorithm(first, second, minimum):
    tile_list = tiles(as_tokens(first), as_tokens(second), minimum)
    assert [(t.first, t.second, t.length) for t in tile_list] == by_hand(first, second, minimum)


@pytest.mark.parametrize("second", [[1] * 40, [1, 2] * 20, [1] * 15 + [3] + [1] * 20, [2] * 30 + [1, 2] * 5])
def test_looking_for_long_runs_first_changes_nothing(second, monkeypatch):
    """With 150 places at once, 40 equal tokens (1,600 places) must be taken in several passes."""
    first = [1, 2] * 10 + [1] * 20
    monkeypatch.setattr(tiling, "SEEDS", 150)
    tile_list = tiles(as_tokens(first), as_tokens(second), 2)
    assert [(t.first, t.second, t.length) for t in tile_list] == by_hand(first, second, 2)


@given(texts, texts, st.integers(1, 5))
@settings(deadline=None)
def test_tiles_are_equal_stretches_and_nothing_is_used_twice(first, second, minimum):
    tile_list = tiles(as_tokens(first), as_tokens(second), minimum)
    at_a = [t.first + n for t in tile_list for n in range(t.length)]
    at_b = [t.second + n for t in tile_list for n in range(t.length)]
    assert len(set(at_a)) == len(at_a)
    assert len(set(at_b)) == len(at_b)
    assert [first[i] for i in at_a] == [second[j] for j in at_b]
    assert all(t.length >= minimum for t in tile_list)


def test_moved_stretches_are_found():
    one, two = list(range(10)), list(range(10, 20))
    assert tiles(as_tokens(one + two), as_tokens(two + one), 5) == [Tile(0, 10, 10), Tile(10, 0, 10)]


def test_used_tokens_are_in_no_tile():
    tokens = as_tokens(range(20))
    used = np.zeros(20, dtype=bool)
    used[5:10] = True
    assert tiles(tokens, tokens, 3, used) == [Tile(0, 0, 5), Tile(10, 10, 10)]
    assert tiles(tokens, tokens, 3, np.ones(20, dtype=bool)) == []


@pytest.mark.parametrize("pattern", [[1], [1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]])
def test_repetitive_files_end_soon(pattern):
    """4,000 equal tokens have 16 million equal places."""
    long = as_tokens((pattern * 4000)[:4000])
    assert tiles(long, long, 8) == [Tile(0, 0, 4000)]
    assert sum(t.length for t in tiles(long, long[:1500], 8)) == 1500


def test_equal_numbers_of_different_runs_are_no_evidence(monkeypatch):
    monkeypatch.setattr(tiling, "grams", lambda tokens, k: np.zeros(max(0, len(tokens) - k + 1), dtype=np.uint64))
    assert tiles(as_tokens(range(10)), as_tokens(range(10, 20)), 3) == []
