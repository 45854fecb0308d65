import random

from forerun.data.own.near_duplicates import near_pairs, shingles

WORDS = [f"w{n}" for n in range(3000)]


def text(seed, length=80):
    return random.Random(seed).choices(WORDS, k=length)


def test_texts_with_one_word_changed_are_near_and_others_not():
    texts = [text(n) for n in range(200)]
    changed = [[*words[:40], "new", *words[41:]] for words in texts[:50]]
    pairs = near_pairs([" ".join(words) for words in texts + changed])
    assert len(pairs) >= 49  # 0.93 of triples are shared; one pair in 10^6 is missed
    assert all(b == a + 200 for a, b in pairs)


def test_quite_the_same_is_near_too_and_short_texts_are_compared_whole():
    assert near_pairs(["a b", "A  b", "a c"]) == [(0, 1)]


def test_many_equal_texts_are_not_compared_pair_by_pair():
    pairs = near_pairs(["the same text again"] * 2000)
    assert {b for _, b in pairs} == set(range(1, 2000))
    assert len(pairs) < 4000


def test_triples():
    assert len(shingles("a b c d")) == 2
    assert len(shingles("")) == 1
