import pytest

from forerun.data.text_tokens import END_ID, START_ID, LearnedTokens

TEXTS = ["a good film about a good story", "a bad film about nothing at all", "the story of a film"] * 5


@pytest.fixture(scope="module")
def tokens():
    return LearnedTokens(TEXTS, 300)


def test_one_text(tokens):
    (encoded,) = tokens.encode([("A good FILM", None)], 64)
    assert (encoded.ids[0], encoded.ids[-1]) == (START_ID, END_ID)
    assert set(encoded.types) == {0}
    assert encoded == tokens.encode([("a good film", None)], 64)[0]


def test_two_texts_have_two_types_and_their_own_ends(tokens):
    (encoded,) = tokens.encode([("a good film", "the story")], 64)
    assert list(encoded.ids).count(END_ID) == 2
    assert encoded.types.index(1) == list(encoded.ids).index(END_ID) + 1
    assert len(encoded.ids) == len(encoded.types)


@pytest.mark.parametrize("length", [4, 8, 12])
def test_long_pairs_are_cut_from_the_longer_text(tokens, length):
    (encoded,) = tokens.encode([(" ".join(TEXTS[:6]), "the story")], length)
    (short,) = tokens.encode([("", "the story")], 64)
    assert len(encoded.ids) == len(encoded.types) == length
    if length >= 12:
        second_text = [token for token, kind in zip(encoded.ids, encoded.types, strict=True) if kind == 1]
        assert second_text == [token for token, kind in zip(short.ids, short.types, strict=True) if kind == 1]
