"""Packing loses no sample, overfills no row, and a micro-batch gives its rows back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.data.packing import PackedSampler, first_fit, rows_of

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=300)


def sampler(lengths, rows=4, accumulation=2, seed=0):
    return PackedSampler(
        lengths=lengths, micro_batch_size=rows, gradient_accumulation_steps=accumulation, sequence_length=64, seed=seed
    )


@given(LENGTHS, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_every_sample_occurs_once_and_no_row_is_too_long(lengths, rows, accumulation, epoch):
    steps = sampler(lengths, rows, accumulation).epoch(epoch)
    batches = [batch for step in steps for batch in step]
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(step) == accumulation for step in steps[:-1])
    rows_by_batch = [rows_of(batch, lengths, 64) for batch in batches]
    assert all(sum(lengths[i] for i in row) <= 64 for packed_rows in rows_by_batch for row in packed_rows)
    assert all(len(packed_rows) == rows for packed_rows in rows_by_batch[:-1]), (
        "all micro-batches but the last are full"
    )
    assert len(rows_by_batch[-1]) <= rows


@given(LENGTHS)
def test_rows_come_back_from_the_flat_order(lengths):
    order = np.argsort(-np.asarray(lengths), kind="stable")
    rows = first_fit(order, lengths, 64)
    assert rows_of([i for row in rows for i in row], lengths, 64) == rows


def test_rows_are_nearly_full():
    lengths = np.random.default_rng(0).geometric(1 / 20, 5000).clip(1, 64).tolist()
    plan = sampler(lengths, rows=8).plan()
    assert plan.tokens / plan.padded_tokens > 0.97


def test_the_order_is_a_function_of_seed_and_epoch():
    lengths = [7, 30, 22, 41, 5, 64, 13] * 20

    def flat(seed, epoch):
        return [batch.tolist() for step in sampler(lengths, seed=seed).epoch(epoch) for batch in step]

    assert flat(0, 0) == flat(0, 0)
    assert flat(0, 0) != flat(0, 1)
    assert flat(0, 0) != flat(1, 0)


@pytest.mark.parametrize("lengths", [[], [65], [0]])
def test_what_cannot_be_packed_is_refused(lengths):
    with pytest.raises(ValueError, match="sequence_length=64"):
        sampler(lengths)
