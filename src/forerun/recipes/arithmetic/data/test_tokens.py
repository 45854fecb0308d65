import pytest

from forerun.errors import UnknownModel
from forerun.recipes.arithmetic.data.text import LLAMA_ASSUMPTION, llama_tokens
from forerun.recipes.arithmetic.data.tokens import CountedTokens, DigitTokens, tokeniser_for


def test_an_output_ends_and_comes_back_as_text():
    digits, assumptions = tokeniser_for("tiny-gpt2", "digits", may_count=False)
    assert isinstance(digits, DigitTokens)
    assert assumptions == ()
    ids = digits.output("975")
    assert tuple(ids[-1:]) == digits.end_ids
    assert digits.text(ids[:-1]) == "975"
    assert digits.pad_id not in [*ids, *digits.prompt("12 + 3 =")]


def test_counted_tokens_have_a_beginning_and_an_end():
    counted, assumptions = tokeniser_for("llama-7b", "model", may_count=True)
    assert isinstance(counted, CountedTokens)
    assert assumptions == (LLAMA_ASSUMPTION,)
    assert len(counted.prompt("12 + 3 =")) == 1 + llama_tokens("12 + 3 =")
    assert len(counted.output("15")) == llama_tokens("15") + 1 == 4


def test_counting_is_not_enough_to_train():
    with pytest.raises(UnknownModel, match="the tokenizer of llama-7b is needed"):
        tokeniser_for("llama-7b", "model", may_count=False)
