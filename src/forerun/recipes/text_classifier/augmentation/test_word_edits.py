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
    given = list(TEXT)
    one, other = (EDITS[name](given, 0.3, random(3), KNOWN) for _ in range(2))
    assert one == other
    assert given == TEXT
    assert any(EDITS[name](given, 0.3, random(seed), KNOWN) != TEXT for seed in range(5))


@pytest.mark.parametrize("name", EDITS)
def test_protected_words_stay_where_they_were_put_in_order(name):
    protected = Edits(frozenset({"not", "fox", "jump"}), KNOWN.synonyms)
    for seed in range(30):
        found = EDITS[name](list(TEXT), 0.5, random(seed), protected)
        assert [word for word in found if word in protected.protected] == ["fox", "not", "jump"]


@pytest.mark.parametrize("name", [name for name in EDITS if name not in NEED_SYNONYMS])
def test_one_word_texts_survive(name):
    assert EDITS[name](["no"], 0.9, random(), Edits())
    assert EDITS[name](["a"], 0.9, random(), Edits())


def test_aeda_only_adds_punctuation():
    found = aeda(list(TEXT), 0.3, random(1), Edits())
    assert [word for word in found if word not in PUNCTUATION] == TEXT
    assert len(TEXT) < len(found) <= len(TEXT) + int(0.3 * len(TEXT))


def test_keyboard_hits_a_neighbouring_key():
    found = keyboard(["quick"], 0.1, random(2), Edits())[0]
    (place,) = (n for n in range(5) if found[n] != "quick"[n])
    row = next(row for row in ROWS if "quick"[place] in row)
    assert abs(row.index("quick"[place]) - row.index(found[place])) == 1


def test_character_swap_keeps_the_letters_and_both_ends():
    found = character_swap(["sleeping"], 0.1, random(4), Edits())[0]
    assert sorted(found) == sorted("sleeping")
    assert (found[0], found[-1]) == ("s", "g")
