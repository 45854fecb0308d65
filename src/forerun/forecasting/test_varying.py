"""Batches of varying length leave blocks that longer ones cannot use; batches of one length, or alike, leave none."""

from types import SimpleNamespace
from typing import Any

import pytest

from forerun.data.plan import BatchPlan, BatchShape
from forerun.forecasting.varying import drawn_lengths, left_in_cache_bytes
from forerun.trace import ALLOCATE, FREE, Phase, Storage, Trace
from forerun.units import MIB

WEIGHTS, LOGITS, LOSS = 0, 1, 2


def step_of(length: int, *, copies: int = 1, power: int = 1) -> Trace:
    """Weights that stay; logits and their copies of 1 MiB a token, alive together."""
    storages = [Storage(64 * MIB, Phase.PREPARE), *[Storage(length**power * MIB, Phase.FORWARD)] * copies]
    events = [(ALLOCATE, WEIGHTS)]
    events += [(ALLOCATE, LOGITS + k) for k in range(copies)] + [(FREE, LOGITS + k) for k in range(copies)]
    return Trace(storages=storages, events=events, warm_from=1)


def two(**keywords: int) -> dict[int, Trace]:
    return {length: step_of(length, **keywords) for length in (100, 400)}


def settings_of(padding: str, mean: float | None, size: int = 2, too_long: str = "cut") -> Any:
    batch = SimpleNamespace(micro_batch_size=size, padding=padding)
    return SimpleNamespace(batch=batch, data=SimpleNamespace(mean_tokens=mean, too_long=too_long))


def plan_of(*counts: tuple[int, int]) -> BatchPlan:
    return BatchPlan(tuple((BatchShape(2, length), number) for length, number in counts), 1, 1, 1.0)


def test_shorter_batches_leave_blocks_that_the_longest_cannot_use():
    # played as 100, 200, 300, the longest, 100 …: each of the first three is too small for the next
    assert left_in_cache_bytes(two(), [100, 200, 300, 100, 100, 100]) == 600 * MIB


def test_a_longest_batch_that_comes_first_serves_all_others():
    # the longest comes in the middle: after it nothing asks for more
    assert left_in_cache_bytes(two(), [100, 100, 100]) == left_in_cache_bytes(two(), [100, 400, 100]) == 100 * MIB


def test_scores_of_attention_grow_with_the_square_of_the_length():
    # 10² + 20² of steps that are too short for the next, before the longest of 40²
    assert left_in_cache_bytes({length: step_of(length, power=2) for length in (10, 40)}, [10, 20]) == 100 * MIB
    assert left_in_cache_bytes({length: step_of(length, power=2) for length in (10, 40)}, [10, 20, 10, 10]) == 500 * MIB


def test_one_length_leaves_nothing():
    assert left_in_cache_bytes({400: step_of(400)}, [400, 400]) == 0
    assert left_in_cache_bytes(two(), [400, 400]) == 0
    assert left_in_cache_bytes(two(), []) == 0


def test_steps_that_differ_in_more_than_sizes_are_not_mixed():
    assert left_in_cache_bytes({100: step_of(100, copies=2), 400: step_of(400)}, [100, 200, 300]) == 0


@pytest.mark.parametrize(
    ("plan", "settings", "some"),
    [
        (plan_of((64, 5), (128, 3)), settings_of("bucketed", None), {64, 128}),
        (plan_of((128, 5)), settings_of("fixed", None), set[int]()),
        (plan_of((128, 5)), settings_of("longest", None), set[int]()),
        (plan_of((128, 5), (512, 0)), settings_of("packed", 100.0), set[int]()),
    ],
)
def test_lengths_are_drawn_from_the_plan(plan, settings, some):
    assert set(drawn_lengths(plan, settings)) == some


def test_lengths_of_a_mean_are_cut_and_longer_where_more_samples_share_a_batch():
    def lengths(size: int) -> list[int]:
        plan = BatchPlan(((BatchShape(size, 128), 5), (BatchShape(size, 512), 0)), 1, 1, 1.0)
        return drawn_lengths(plan, settings_of("longest", 100.0, size), 400)

    assert sum(lengths(1)) / 400 == pytest.approx(100, rel=0.15)
    assert sum(lengths(8)) > 2 * sum(lengths(1))
    assert max(lengths(8)) == 512


def test_dropped_samples_do_not_pile_up_at_the_limit():
    plan = BatchPlan(((BatchShape(1, 300), 5), (BatchShape(1, 512), 0)), 1, 1, 1.0)
    cut, dropped = (drawn_lengths(plan, settings_of("longest", 300.0, 1, word), 400) for word in ("cut", "drop"))
    assert cut.count(512) > 0.15 * 400
    assert dropped.count(512) < 0.01 * 400
    assert sum(dropped) / 400 == pytest.approx(300, rel=0.02)
