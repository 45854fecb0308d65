import numpy as np
import pytest

from forerun.recipes.text_classifier.augmentation.word_edits import (
    EDITS,
    NEED_SYNONYMS,
    PUNCTUATION,
    ROWS,
    Edits,
    aeda,
    character_swap,
    keyboard,
)

TEXT = ["the", "quick", "brown", "fox", "does", "not", "jump", "over", "lazy", "sleeping", "dogs", "today"]
KNOWN = Edits(synonyms={"quick": ["fast"], "dogs": ["hounds"]})


def random(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_a_function_of_its_generator_and_leaves_its_input_alone(name):
    words = list(TEXT)
    one, other = (EDITS[name](words, 0.3, random(3), KNOWN) for _ in range(2))
    assert one == other
    assert words == TEXT
    assert any(EDITS[name](words, 0.3, random(seed), KNOWN) != TEXT for seed in range(5))


@pytest.mark.parametrize("name", EDITS)
def test_protected_words_stay_where_they_were_put_in_order(name):
    protected = Edits(frozenset({"not", "fox", "jump"}), KNOWN.synonyms)
    for seed in range(30):
        words = EDITS[name](list(TEXT), 0.5, random(seed), protected)
        assert [word for word in words if word in protected.protected] == ["fox", "not", "jump"]


@pytest.mark.parametrize("name", [name for name in EDITS if name not in NEED_SYNONYMS])
def test_one_word_texts_survive(name):
    assert EDITS[name](["no"], 0.9, random(), Edits())
    assert EDITS[name](["a"], 0.9, random(), Edits())


def test_aeda_only_adds_punctuation():
    words = aeda(list(TEXT), 0.3, random(1), Edits())
    assert [word for word in words if word not in PUNCTUATION] == TEXT
    assert len(TEXT) < len(words) <= len(TEXT) + int(0.3 * len(TEXT))


def test_keyboard_hits_a_neighbouring_key():
    word = keyboard(["quick"], 0.1, random(2), Edits())[0]
    (place,) = (n for n in range(5) if word[n] != "quick"[n])
    row = next(row for row in ROWS if "quick"[place] in row)
    assert abs(row.index("quick"[place]) - row.index(word[place])) == 1


def test_character_swap_keeps_the_letters_and_both_ends():
    word = character_swap(["sleeping"], 0.1, random(4), Edits())[0]
    assert sorted(word) == sorted("sleeping")
    assert (word[0], word[-1]) == ("s", "g")
