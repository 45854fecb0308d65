import pytest
import torch

from forerun.data.sided_tokens import SidedData
from forerun.data.token_data import IGNORED, TokenSample
from forerun.settings.load import settings_from

SETTINGS = settings_from({
    "name": "a", "workload": "embedding", "model": {"name": "tiny-bert"},
    "batch": {"micro_batch_size": 2, "sequence_length": 16, "padding": "bucketed"},
})  # fmt: skip


def test_sides_are_padded_to_one_length_and_keep_their_order():
    left = [TokenSample([5] * 3), TokenSample([6] * 12), TokenSample([7] * 2)]
    right = [TokenSample([8] * 9), TokenSample([9]), TokenSample([10] * 30)]
    data = SidedData(SETTINGS, {"": left, "other_": right}, 0)
    assert data.lengths.tolist() == [9, 12, 16]  # of the longer side, cut
    batch = data.collate([0, 1])
    assert batch["input_ids"].shape == batch["other_input_ids"].shape == (2, 16)
    assert batch["attention_mask"].sum(1).tolist() == [3, 12]
    assert batch["other_attention_mask"].sum(1).tolist() == [9, 1]
    assert sorted(i for step in data.epoch_steps(0) for b in step for i in b) == [0, 1, 2]


def test_labels_and_numbers_go_along():
    side = [TokenSample([5, 6], [IGNORED, 6]), TokenSample([7, 8, 9], [IGNORED, 8, 9])]
    data = SidedData(SETTINGS, {"": side}, 0, with_masks=False, numbers={"weight": [0.5, 2.0]})
    batch = data.collate([1, 0])
    assert "attention_mask" not in batch
    assert batch["labels"][:, :3].tolist() == [[IGNORED, 8, 9], [IGNORED, 6, IGNORED]]
    assert torch.equal(batch["weight"], torch.tensor([2.0, 0.5]))


def test_sides_must_be_equally_many():
    with pytest.raises(ValueError, match="equally many"):
        _ = SidedData(SETTINGS, {"": [TokenSample([1])], "other_": []}, 0).lengths
