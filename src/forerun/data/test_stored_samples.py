"""Samples on disk are those in memory, and so are the batches made of them."""

import numpy as np
import pytest
import torch

from forerun.data.stored_samples import StoredSamples, write_samples
from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.settings.load import settings_from

ROWS = 41


def sample_of(kind, chance):
    ids = chance.integers(5, 90, chance.integers(2, 20)).astype(np.int32)
    match kind:
        case "causal-lm":
            return TokenSample(ids)
        case "masked-lm":
            return TokenSample(ids, np.where(chance.random(len(ids)) < 0.5, ids, IGNORED).astype(np.int32))
        case "seq2seq-lm":
            return TokenSample(ids, ids[: 1 + len(ids) // 2])
        case "one":
            return TokenSample(ids, int(chance.integers(3)), [0] * 2 + [1] * (len(ids) - 2))
        case "several":
            return TokenSample(ids, chance.integers(0, 2, 4).astype(float).tolist())
        case _:
            return TokenSample(ids, float(chance.random()))


def both(tmp_path, kind):
    chance = np.random.default_rng(0)
    samples = [sample_of(kind, chance) for _ in range(ROWS)]
    assert write_samples(tmp_path / "s", iter(samples)) == ROWS
    return samples, StoredSamples(tmp_path / "s")


def data_of(samples, kind, padding="bucketed"):
    workload = kind if kind.endswith("-lm") else "sequence-classification"
    batch = {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 16, "padding": padding}
    settings = {
        "name": "s",
        "workload": workload,
        "model": {"name": "tiny-bert"},
        "batch": batch,
        "data": {"examples": ROWS},
    }
    return TokenData(settings_from(settings), samples)


@pytest.mark.parametrize("kind", ["causal-lm", "masked-lm", "seq2seq-lm", "one", "several", "number"])
def test_batches_of_stored_samples_are_those_of_samples_in_memory(tmp_path, kind):
    samples, stored = both(tmp_path, kind)
    here, there = data_of(samples, kind), data_of(stored, kind)
    assert here.plan() == there.plan()
    for epoch in (0, 1):
        for step, other in zip(here.epoch_steps(epoch), there.epoch_steps(epoch), strict=True):
            for batch, twin in zip(step, other, strict=True):
                assert here.tokens(batch) == there.tokens(twin)
                tensors, twins = here.collate(batch), there.collate(twin)
                assert tensors.keys() == twins.keys()
                for name, tensor in tensors.items():
                    assert (tensor.dtype, tensor.tolist()) == (twins[name].dtype, twins[name].tolist())


def test_a_slice_is_a_part(tmp_path):
    samples, stored = both(tmp_path, "seq2seq-lm")
    part = stored[3:30][2:]
    assert len(part) == 25
    assert part.id_lengths.tolist() == [len(sample.ids) for sample in samples[5:30]]
    assert part.target_lengths.tolist() == [len(sample.target) for sample in samples[5:30]]
    assert np.array_equal(part[-1].target, samples[29].target)
    with pytest.raises(IndexError):
        part[25]


@pytest.mark.parametrize("kind", ["causal-lm", "masked-lm", "seq2seq-lm"])
def test_labels_that_count_are_counted_while_they_are_written(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("forerun.data.stored_samples.COUNTED", 30)
    samples, stored = both(tmp_path, kind)
    labels = list(data_of(samples, kind).valid_labels())
    assert stored.counts.tolist() == np.bincount(labels).tolist()


def test_nothing_is_a_sequence_too(tmp_path):
    assert write_samples(tmp_path, []) == 0
    stored = StoredSamples(tmp_path)
    assert (len(stored), list(stored), stored.counts.tolist()) == (0, [], [])


def test_ids_become_tensors_without_a_warning(tmp_path):
    _, stored = both(tmp_path, "causal-lm")
    assert torch.as_tensor(stored[0].ids).dtype == torch.int32
