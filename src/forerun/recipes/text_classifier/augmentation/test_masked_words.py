import numpy as np
import pytest

from forerun.errors import UnknownModel
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.recipes.text_classifier.augmentation.masked_words import back_translation, contextual

WORDS = ["good", "bad", "film", "story", "music", "actor", "plot", "scene"]


@pytest.fixture(scope="module")
def masked_model(tmp_path_factory):
    """A tiny masked language model with a vocabulary of words, as files."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("masked")
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )  # fmt: skip
    fast.save_pretrained(folder)
    build_model(model_config("tiny-bert", {"vocab_size": len(vocabulary)}, "auto"), "masked-lm").save_pretrained(folder)
    return str(folder)


def test_words_are_replaced_by_words_of_the_model(masked_model):
    rewrite = contextual(masked_model, frozenset({"bad"}))
    text = "good bad film story music"
    rewrites = [rewrite(text, 0.4, np.random.default_rng(seed)) for seed in range(6)]
    assert rewrites == [rewrite(text, 0.4, np.random.default_rng(seed)) for seed in range(6)]
    for new_text in rewrites:
        words = new_text.split()
        assert set(words) <= set(WORDS)
        assert sum(new != old for new, old in zip(words, text.split(), strict=True)) == 2
        assert words[1] == "bad"


@pytest.mark.parametrize("load", [contextual, lambda name: back_translation([name, name])])
def test_a_model_that_is_not_there_is_an_error(load, tmp_path):
    with pytest.raises(UnknownModel, match="cannot be loaded"):
        load(str(tmp_path))
