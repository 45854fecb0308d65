"""Tokenizers learned from own texts: words of every script, nothing lost, and runs from before read as they were."""

import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from forerun.data.byte_pairs import by_words
from forerun.data.chat_tokens import PIECES
from forerun.own.tokens import encoded, learned_tokenizer, plain_encoder
from forerun.settings.load import settings_from

WORDS = [
    "Größe",
    "Straße",
    "élève",
    "слово",
    "Ελλάδα",
    "İstanbul",
    "한국어",
    "हिंदी",
    "ภาษา",
    "e\u0301te\u0301",
    "日本",
    "dog",
]
ODD = [
    "Größe 12,5 cm – „ja“\r\n\tнет; 3.141.592\n\n  ok ",
    " \x00\x1f\x7f\x85\xa0\u200b\u2028\ufeff\U0001f469\u200d\U0001f52c e\u0301 \ud7ff\U0010ffff",
    "",
    "\n",
]


def settings(workload="causal-lm"):
    return settings_from({"workload": workload, "name": "t", "model": {"name": "tiny-llama"}})


@pytest.fixture(scope="module")
def tokenizer():
    return learned_tokenizer(settings(), [f"{word} und {word}, {word}!" for word in WORDS] * 9)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_any_script_is_one_piece(tokenizer, word):
    ids = tokenizer(f"und {word}, und {word}!", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([number]) for number in ids] == ["und", f" {word}", ",", " und", f" {word}", "!"]


@pytest.mark.parametrize("text", [*ODD, "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000)]))])
def test_no_letter_is_lost(tokenizer, text):
    (ids,) = plain_encoder(tokenizer)([text])
    assert tokenizer.decode(ids.tolist()) == text
    assert ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_tokenizer_from_before_keeps_its_own_rule(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "tokenizer.json").read_text())
    facts["pre_tokenizer"] = json.loads(by_words(PIECES).__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    old = AutoTokenizer.from_pretrained(tmp_path)
    text = "und Größe"
    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert plain_encoder(old)([text])[0].tolist() == ids != plain_encoder(tokenizer)([text])[0].tolist()
    assert old.decode(ids) == text
    (sample,) = encoded(old, [(text, None)], 32)
    assert sample["input_ids"] == ids
