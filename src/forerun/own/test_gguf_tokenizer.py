"""Tokenizers for llama.cpp: scores from merges, blanks before texts and behind special tokens."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forerun.errors import NotSupported
from forerun.own.facts import TaskFacts
from forerun.own.gguf_tokenizer import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    SplitRule,
    add_tokenizer,
    piece_scores,
    split_rule,
    stripping_name,
)

ALPHABET = [f"<0x{value:02X}>" for value in range(256)]
WORDS = ["<unk>", "<s>", "</s>", *ALPHABET, "▁", "a", "b", "▁a", "ab", "▁ab"]
MERGES = [("▁", "a"), ("a", "b"), ("▁", "ab"), ("▁a", "b")]


def tokenizer_of(*, normalizer=None, pre_tokenizer=None, words=WORDS, merges=MERGES, rstrip=()):
    inner = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, merges, byte_fallback=True))
    if normalizer is not None:
        inner.normalizer = normalizer
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    inner.add_special_tokens([AddedToken(word, rstrip=word in rstrip) for word in ("<unk>", "<s>", "</s>")])
    inner.add_special_tokens([AddedToken(word, rstrip=True) for word in rstrip if word not in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token=None if "</s>" in rstrip else "</s>", unk_token="<unk>"
    )


class Writer:
    """Remembers what it is told to write."""

    def __init__(self):
        self.told = {}

    def __getattr__(self, name):
        return lambda value: self.told.__setitem__(name, value)


def test_scores_have_the_order_of_the_merges():
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6]
    scores = piece_scores(MERGES, WORDS, kinds)
    assert scores[-6:] == [-3.0, -3.0, -3.0, 0.0, -1.0, -2.0]
    assert (scores[0], scores[1], scores[3]) == (0.0, -1000.0, 0.0)


@pytest.mark.parametrize(
    ("merges", "words"),
    [
        (MERGES[:-1], "any two tokens that make a third are a merge, .* found '▁ab', of which '▁a' and 'b' are not"),
        ([MERGES[0], MERGES[2], MERGES[1], MERGES[3]], "merges of one token stand together.* those of '▁ab' do not"),
    ],
)
def test_merges_without_scores_are_refused(merges, words):
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6]
    with pytest.raises(NotSupported, match=words):
        piece_scores(merges, WORDS, kinds)


BLANKS = normalizers.Replace(" ", "▁")


@pytest.mark.parametrize(
    ("parts", "prefix"),
    [
        ({"normalizer": BLANKS}, "never"),
        ({"normalizer": BLANKS, "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous")}, "never"),
        ({"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), BLANKS])}, "always"),
        ({"pre_tokenizer": pre_tokenizers.Metaspace("▁", "first", split=False)}, "first"),
        ({"pre_tokenizer": pre_tokenizers.Metaspace("▁", "always", split=False)}, "always"),
    ],
)
def test_blanks_before_texts(parts, prefix):
    tokenizer = tokenizer_of(**parts)
    assert split_rule(tokenizer) == SplitRule(name="sentence-pieces", prefix=prefix)
    writer = Writer()
    for is_chat, template in ((False, None), (True, "<s>{{ messages }}")):
        tokenizer.chat_template = template
        facts = TaskFacts(
            workload="causal-lm", format="text", sequence_length=8, pad_id=0, end_ids=(2,), is_chat=is_chat
        )
        add_tokenizer(writer, tokenizer, facts, split_rule(tokenizer), 270)
        assert writer.told["add_add_space_prefix"] == (prefix == "always" or (prefix == "first" and not is_chat))
    assert (writer.told["add_unk_token_id"], writer.told["add_token_list"][-1]) == (0, "[PAD269]")
    assert writer.told["add_chat_template"] == "<s>{{ messages }}"
    if prefix == "first":
        tokenizer.chat_template = "User: {{ messages }}"
        with pytest.raises(NotSupported, match="begins with a special token, .* begins with .User: "):
            add_tokenizer(writer, tokenizer, facts, split_rule(tokenizer), 270)


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": pre_tokenizers.Metaspace("▁", "first", split=True)},
        {"normalizer": normalizers.Sequence([normalizers.NFKC(), BLANKS])},
        {"normalizer": BLANKS, "pre_tokenizer": pre_tokenizers.Whitespace()},
        {},
    ],
)
def test_other_rules_are_refused(parts):
    with pytest.raises(NotSupported, match="knows by name"):
        split_rule(tokenizer_of(**parts))


def test_each_byte_has_a_token():
    tokenizer = tokenizer_of(normalizer=BLANKS, words=[word for word in WORDS if word != "<0x41>"])
    facts = TaskFacts(workload="causal-lm", format="text", sequence_length=8, pad_id=0, end_ids=(2,))
    with pytest.raises(NotSupported, match="a token for each byte.*<0x41>"):
        add_tokenizer(Writer(), tokenizer, facts, split_rule(tokenizer), 270)


def test_the_name_says_whether_blanks_behind_special_tokens_go():
    plain = tokenizer_of(normalizer=BLANKS)
    assert stripping_name(plain, "my Phi-3 tuned") == "my phi 3 tuned"
    assert stripping_name(plain, "reviews") == "reviews"
    stripping = tokenizer_of(normalizer=BLANKS, words=[*WORDS, "<|endoftext|>"], rstrip=("</s>", "<|end|>"))
    assert stripping_name(stripping, "reviews") == "reviews (phi-3)"
    assert stripping_name(stripping, "phi3-reviews") == "phi3-reviews"
    for other in (("<|end|>",), ("</s>", "<|end|>")):  # </s> does not strip; <|endoftext|> is not there
        with pytest.raises(NotSupported, match="behind all special tokens"):
            stripping_name(tokenizer_of(normalizer=BLANKS, rstrip=other), "reviews")
