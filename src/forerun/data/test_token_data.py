"""Batches of every workload hold each sample once, cut and padded as said, with the count of valid labels."""

import pytest
import torch

from forerun.data.token_data import IGNORED, TokenData, TokenSample
from forerun.settings.load import settings_from


def data(workload, samples, **batch):
    batch = {"micro_batch_size": 2, "sequence_length": 8, "padding": "longest", **batch}
    return TokenData(
        settings_from({"name": "a", "workload": workload, "model": {"name": "x"}, "batch": batch}), samples
    )


def test_causal_labels_are_the_ids_and_the_first_is_not_counted():
    batch = data("causal-lm", [TokenSample([5, 6, 7]), TokenSample([8] * 12)]).collate([0, 1])
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0, 0, 0, 0, 0], [8] * 8]
    assert batch["labels"][0].tolist() == [5, 6, 7, *[IGNORED] * 5]
    assert batch["count"] == 2 + 7


def test_own_labels_of_a_causal_sample_leave_the_prompt_out():
    batch = data("causal-lm", [TokenSample([5, 6, 7], [IGNORED, IGNORED, 7])]).collate([0])
    assert batch["count"] == 1


def test_classes():
    batch = data("sequence-classification", [TokenSample([5, 6], 1), TokenSample([5], 0)]).collate([1, 0])
    assert batch["labels"].tolist() == [0, 1]
    assert batch["attention_mask"][:, :2].tolist() == [[1, 0], [1, 1]]


def test_a_decoder_begins_with_its_start():
    batch = data("seq2seq-lm", [TokenSample([5, 6], [7, 8, 9])]).collate([0])
    assert batch["decoder_input_ids"][0, :3].tolist() == [0, 7, 8]
    assert batch["labels"][0, :4].tolist() == [7, 8, 9, IGNORED]
    assert batch["count"] == 3


def test_both_sides_of_a_pair():
    batch = data("pairs", [TokenSample([5, 6], [7])]).collate([0])
    assert batch["other_input_ids"][0, :2].tolist() == [7, 0]
    assert batch["other_attention_mask"][0, :2].tolist() == [1, 0]


@pytest.mark.parametrize("workload", ["causal-lm", "token-classification", "sequence-classification"])
def test_packed_rows(workload):
    targets = {"causal-lm": None, "sequence-classification": 1}
    samples = [TokenSample([n] * n, targets.get(workload, [n] * n)) for n in (5, 3, 4)]
    packed = data(workload, samples, padding="packed")
    (step,) = packed.epoch_steps(0)
    (indices,) = step
    batch = packed.collate(indices)
    assert batch["input_ids"].tolist() == [[5, 5, 5, 5, 5, 3, 3, 3], [4, 4, 4, 4, 0, 0, 0, 0]]
    assert batch["documents"].tolist() == [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert packed.tokens(indices) == (12, 16)
    if workload == "sequence-classification":
        assert batch["firsts"].tolist() == [0, 5, 8]
        assert batch["labels"].tolist() == [1, 1, 1]
    else:
        assert batch["count"] == (12 - 3 if workload == "causal-lm" else 12)
        assert torch.equal(batch["labels"] == IGNORED, _ignored(workload))


def _ignored(workload):
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 4:] = True
    if workload == "causal-lm":
        mask[0, 0] = mask[0, 5] = mask[1, 0] = True
    return mask


def test_a_target_of_the_wrong_kind_is_refused():
    with pytest.raises(ValueError, match="list of ids"):
        data("masked-lm", [TokenSample([5, 6], 1)]).collate([0])


def test_labels_that_count_are_those_of_the_loss():
    from forerun.data.token_data import IGNORED, TokenData, TokenSample
    from forerun.settings.load import settings_from

    settings = settings_from(
        {"name": "t", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"examples": 2}}
    )
    data = TokenData(settings, [TokenSample([1, 2, 3], [IGNORED, 2, 3]), TokenSample([4, 5])])
    assert list(data.valid_labels()) == [2, 3, 4, 5]
