"""Looked-up ids are those of the tokenizer, for every letter and whatever the texts hold."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forerun.data import word_ids
from forerun.data.byte_pairs import learn_byte_pairs
from forerun.data.word_ids import CUTS, WordIds, is_word_by_word

TEXTS = [
    "the dog barks and the cat sleeps",
    "  a dog\r\n\tsays: 12345 + x_1\n\n",
    "",
    "Ä <s> the",
    "a\x1cb \x1f c",
    "café 日本",
    "it's 'stuff', he'll 've'em ''s !'s 12's 'é's",
    "Größe1 ①2 naïve“quoted”—and\xa0so \x01!\x02a\x7f!",
    "日本語の 文。Это  слово,\u3000\u2028x\n\n  y \n",
]


def fast(tokenizer):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>")


@pytest.fixture(scope="module", params=CUTS, ids=["any script", "chats"])
def tokenizer(request):
    return fast(learn_byte_pairs(TEXTS * 5, 400, ["<pad>", "<s>"], pieces=request.param, minimum_count=2))


def expected(tokenizer, texts):
    return [each.ids for each in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]


def test_ids_are_those_of_the_tokenizer(tokenizer):
    words = WordIds(tokenizer)
    for texts in (TEXTS, TEXTS[::-1], ["dog"], ["", ""]):
        assert [ids.tolist() for ids in words(texts)] == expected(tokenizer, texts)
    assert words([]) == []
    assert words(TEXTS)[3].tolist().count(1) == 1, "a special token in a text is one"


def test_every_letter_is_cut_as_the_tokenizer_cuts_it(tokenizer):
    letters = [chr(code) for code in range(0x3100)]  # beyond are no blanks; all 1,112,064 agreed on 2026-11-28
    texts = [f"a{letter}b {letter} \n{letter}{letter}7!{letter}.{letter}'s{letter}" for letter in letters]
    wrong = [
        text
        for text, ids, other in zip(texts, WordIds(tokenizer)(texts), expected(tokenizer, texts), strict=True)
        if ids.tolist() != other
    ]
    assert wrong == []


def test_words_that_are_too_many_are_forgotten(tokenizer, monkeypatch):
    monkeypatch.setattr(word_ids, "MOST_LETTERS", 10)
    words = WordIds(tokenizer)
    for text in TEXTS:
        assert [ids.tolist() for ids in words([text])] == expected(tokenizer, [text])
        assert len(words._places) < 20


def test_other_tokenizers_are_told_apart(tokenizer):
    assert is_word_by_word(tokenizer)
    assert not is_word_by_word(fast(learn_byte_pairs(TEXTS, 320, ["<pad>", "<s>"], pieces=r"\w+")))
    by_words = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "<pad>": 2}, unk_token="<pad>"))
    by_words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not is_word_by_word(fast(by_words))
    assert not is_word_by_word(object())
