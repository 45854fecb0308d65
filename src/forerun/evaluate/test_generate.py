import itertools
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import OutOfMemory
from forerun.evaluate.generate import Decoding, expected_longest, generate, left_padded, until_end
from forerun.models.build import build_model
from forerun.models.catalogue import model_config

GREEDY = Decoding(new_tokens=6, end_ids=(5,), pad_id=0)
PROMPTS = [[7, 8, 9], [11], [12, 13, 14, 15, 16], [17, 18]]


@pytest.fixture(scope="module", params=["tiny-gpt2", "tiny-llama"])
def model(request):
    torch.manual_seed(0)
    return build_model(model_config(request.param, {}, "auto"), "causal-lm")


def test_prompts_end_in_the_last_column():
    batch = left_padded(PROMPTS, 0)
    assert batch["input_ids"][:, -1].tolist() == [9, 11, 16, 18]
    assert batch["attention_mask"].sum(1).tolist() == [3, 1, 5, 2]
    with pytest.raises(ValueError, match="at least one token"):
        left_padded([[1], []], 0)


def test_ids_stop_before_the_end_or_padding():
    assert until_end([3, 4, 5, 6], GREEDY) == [3, 4]
    assert until_end([3, 0, 4], GREEDY) == [3]
    assert until_end([3, 4], GREEDY) == [3, 4]


def test_batching_changes_nothing(model):
    together = generate(model, PROMPTS, GREEDY, batch_size=3)
    assert together == [generate(model, [prompt], GREEDY, batch_size=1)[0] for prompt in PROMPTS]
    assert all(len(ids) <= 6 for ids in together)


@pytest.mark.medium
def test_a_batch_without_room_is_generated_in_halves(model, monkeypatch):
    whole = generate(model, PROMPTS, GREEDY, batch_size=4)
    real, sizes = model.generate, []

    def small(**arguments):
        sizes.append(len(arguments["input_ids"]))
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(**arguments)

    monkeypatch.setattr(model, "generate", small)
    assert generate(model, PROMPTS, GREEDY, batch_size=4) == whole
    assert sizes == [4, 2, 1, 1, 2, 1, 1]
    monkeypatch.setattr(model, "generate", lambda **arguments: small(**{**arguments, "input_ids": torch.ones(2, 1)}))
    with pytest.raises(OutOfMemory, match="single sample"):
        generate(model, PROMPTS, GREEDY, batch_size=4)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 60))
def test_the_expected_longest_is_that_of_all_batches(lengths, size, most):
    """Every batch of so many draws, one by one."""
    batches = itertools.product(lengths, repeat=size)
    expected = statistics.fmean(min(most, max(batch)) for batch in batches)
    assert expected_longest(lengths, size, most) == pytest.approx(expected)
