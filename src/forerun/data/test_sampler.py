from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.data.sampler import LengthBucketSampler, padded_length


def build(samples: int = 500, seed: int = 0, **changes) -> LengthBucketSampler:
    random = np.random.default_rng(3)
    lengths = random.integers(5, 250, samples).tolist()
    groups = [f"g{random.integers(0, samples // 2)}" for _ in range(samples)]
    fields = {"lengths": lengths, "groups": groups, "micro_batch_size": 16, "sequence_length": 256, "seed": seed}
    return LengthBucketSampler(**fields | changes)


@given(
    groups=st.lists(st.integers(0, 9), min_size=1, max_size=80),
    micro=st.integers(1, 9),
    accumulation=st.integers(1, 4),
    members=st.integers(2, 5),
    padding=st.sampled_from(["fixed", "longest", "bucketed"]),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_once_and_only_one_micro_batch_is_short(groups, micro, accumulation, members, padding):
    sampler = LengthBucketSampler(
        lengths=[7 * group + 1 for group in groups],
        groups=[str(group) for group in groups],
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        sequence_length=64,
        members=members,
        padding=padding,
    )
    steps = sampler.epoch(0)
    batches = [batch for step in steps for batch in step]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(groups)))
    assert len(batches) == -(-len(groups) // micro)
    assert sum(len(batch) != micro for batch in batches) <= 1
    assert len(steps) == -(-len(batches) // accumulation)
    assert all(len(step) == accumulation for step in steps[:-1])


def test_order_depends_on_seed_and_epoch_only():
    def flat(sampler, epoch):
        return [batch.tolist() for step in sampler.epoch(epoch) for batch in step]

    assert flat(build(), 1) == flat(build(), 1)
    assert flat(build(), 1) != flat(build(), 2)
    assert flat(build(), 1) != flat(build(seed=1), 1)


def test_the_plan_counts_the_batches_that_training_gets():
    sampler = build(gradient_accumulation_steps=3)
    plan = sampler.plan(epoch=4)
    steps = sampler.epoch(4)
    expected = Counter(sampler.shape(batch) for step in steps for batch in step)
    assert dict(plan.shapes) == expected
    assert (plan.steps, plan.samples, plan.tokens) == (len(steps), 500, sum(sampler.lengths))
    assert all(max(sampler.lengths[i] for i in batch) <= sampler.shape(batch).length for s in steps for batch in s)


def test_a_run_of_a_few_steps_meets_no_longer_batch_than_they_have():
    sampler = build(micro_batch_size=4, gradient_accumulation_steps=2)
    steps = sampler.epoch(0)
    for count in (1, 3, 10):
        longest = max(sampler.shape(batch).length for step in steps[:count] for batch in step)
        plan = sampler.plan(most_steps=count)
        assert plan.longest.length == longest
        assert (plan.steps, plan.micro_batches, plan.samples) == (len(steps), sum(map(len, steps)), 500)
        assert plan.tokens <= plan.padded_tokens
    assert sampler.plan(most_steps=1).longest.length < sampler.plan().longest.length
    assert sampler.plan(most_steps=len(steps)) == sampler.plan(most_steps=9999) == sampler.plan()


def test_a_small_batch_of_long_samples_makes_no_full_one_as_long():
    lengths = [8] * 64 + [40] * 32 + [120] * 4
    sampler = build(lengths=lengths, groups=None, micro_batch_size=32, gradient_accumulation_steps=1)
    orders = ((sampler.epoch(epoch), epoch) for epoch in range(50))
    steps, epoch = next(  # the small batch of long samples comes before the heaviest one
        (s, e) for s, e in orders if [len(s[0][0]), sampler.shape(s[-1][0]).length] == [4, 40]
    )
    plan = sampler.plan(epoch, most_steps=len(steps) - 1)
    heaviest = max(shape.size * shape.length for step in steps[:-1] for shape in map(sampler.shape, step))
    assert plan.longest.size * plan.longest.length == heaviest == 480
    assert plan.tokens <= plan.padded_tokens


def test_buckets_waste_less_padding():
    alone = [str(index) for index in range(500)]
    bucketed, longest, fixed = (build(padding=kind, groups=alone).plan() for kind in ("bucketed", "longest", "fixed"))
    assert bucketed.padded_tokens < 0.75 * longest.padded_tokens
    assert longest.padded_tokens < fixed.padded_tokens == 500 * 256


def test_groups_meet_in_a_batch():
    """Most samples whose group has another member share their micro-batch with one."""
    sampler = build()
    sizes = Counter(sampler.groups)
    anchors = met = 0
    for step in sampler.epoch(0):
        for batch in step:
            here = Counter(sampler.groups[index] for index in batch)
            anchors += sum(sizes[sampler.groups[index]] > 1 for index in batch)
            met += sum(here[sampler.groups[index]] > 1 for index in batch)
    assert met > 0.95 * anchors


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (8, 8), (9, 16), (250, 250), (249, 250)])
def test_padded_length_is_a_multiple_but_never_above_the_limit(length, expected):
    assert padded_length(length, 250) == expected
    assert padded_length(length, 250, 64) % 64 in (0, 250 % 64)


def test_lengths_and_groups_must_match():
    with pytest.raises(ValueError, match="one length and group a sample"):
        build(groups=["a"])
